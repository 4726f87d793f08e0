-- Called by Store::connect of a connection that goes back into the pool: whether it leads to a standby or to a primary that refuses writes.
-- Locks nothing.
-- Never zero rows.
SELECT current_setting('transaction_read_only') AS "read_only!"
