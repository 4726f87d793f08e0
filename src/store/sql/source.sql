-- Called by Store::source. A name for this very outbox: cluster, database and table.
-- Locks nothing.
-- Never zero rows: always one.
SELECT left(md5(concat_ws('/', (SELECT c.system_identifier FROM pg_control_system() AS c),
                               (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),
                               'outbox'::regclass::oid)), 12) AS "source!"
