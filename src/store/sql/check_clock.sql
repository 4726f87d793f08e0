-- Called by Store::checks. The database's clock, now and not as of the start of the transaction.
-- Locks nothing.
-- Never zero rows: always one.
SELECT clock_timestamp() AS "now!"
