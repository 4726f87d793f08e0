-- Called by Store::checks. The indexes of the outbox: name, whether PostgreSQL may use it, and what it holds.
-- Locks nothing.
-- Zero rows: there is no index, or no table.
SELECT c.relname::text AS "name!",
       x.indisvalid AND x.indisready AND x.indislive AS "is_valid!",
       split_part(pg_get_indexdef(x.indexrelid), ' USING ', 2) AS "holds!"
FROM pg_index AS x
JOIN pg_class AS c ON c.oid = x.indexrelid
WHERE x.indrelid = to_regclass('outbox')
