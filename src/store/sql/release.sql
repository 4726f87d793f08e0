-- Called by Store::release. Hands back rows that were claimed and never tried: pending again, due as before, attempt refunded.
-- Locks rows in id order FOR UPDATE, and waits, as finalize.sql does.
-- A row that is not returned was not changed: its lease was taken over or reaped.
WITH locked AS MATERIALIZED (
    SELECT o.id
    FROM outbox AS o
    WHERE o.id = ANY ($1::bigint[])
    ORDER BY o.id
    FOR UPDATE OF o
)
UPDATE outbox AS o
SET status = 'pending',
    attempts = greatest(o.attempts - 1, 0),
    lease_owner = NULL,
    lease_until = NULL
FROM unnest($1::bigint[], $2::bigint[]) AS held (id, lease_version)
JOIN locked AS l ON l.id = held.id
WHERE o.id = held.id
  AND o.id = ANY ($1::bigint[])
  AND o.status = 'processing'
  AND o.lease_version = held.lease_version
RETURNING o.id
