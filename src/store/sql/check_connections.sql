-- Called by Store::checks. How many more connections this role may open: what server, database or role have left, the least of it.
-- Locks nothing.
-- Never zero rows: always one.
SELECT LEAST(
           current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
               - coalesce(current_setting('reserved_connections', true)::bigint, 0)
               - (SELECT coalesce(sum(s.numbackends), 0) FROM pg_stat_database AS s)::bigint,
           (SELECT d.datconnlimit - s.numbackends
            FROM pg_database AS d
            JOIN pg_stat_database AS s ON s.datid = d.oid
            WHERE d.datname = current_database() AND d.datconnlimit >= 0),
           (SELECT r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid = r.oid)
            FROM pg_roles AS r
            WHERE r.rolname = session_user AND r.rolconnlimit >= 0)
       ) AS "left!"
