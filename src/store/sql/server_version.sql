-- Called by migrate::run. The server's major version.
-- Locks nothing.
-- Never zero rows: always one.
SELECT current_setting('server_version_num')::integer / 10000 AS "major!"
