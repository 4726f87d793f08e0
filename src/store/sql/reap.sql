-- Called by Store::reap. Declares dead what never reached a finalize: the lease ran out and no attempts are left.
-- Locks leased rows by lease_until, FOR UPDATE SKIP LOCKED: waits for nobody, and a finalize in progress wins.
-- Zero rows: no such row; the usual case.
WITH spent AS MATERIALIZED (
    SELECT o.id
    FROM outbox AS o
    WHERE o.status = 'processing'
      AND o.lease_until < now()
      AND o.attempts >= $1::integer
    ORDER BY o.lease_until, o.id
    LIMIT $2::bigint
    FOR UPDATE OF o SKIP LOCKED
)
UPDATE outbox AS o
SET status = 'dead',
    last_error = 'lease expired after max attempts (worker crash?)',
    lease_owner = NULL,
    lease_until = NULL
-- a join to the ids could become a walk through the whole primary key; each row is locked and was looked at then
WHERE o.id = ANY (ARRAY(SELECT s.id FROM spent AS s))
RETURNING o.id
