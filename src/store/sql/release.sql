-- Called by Store::release. Hands back rows that were claimed and never tried: pending again, due as before, attempt refunded.
-- Locks rows in id order FOR UPDATE SKIP LOCKED, as finalize.sql does.
-- One row a row asked for. Neither written nor busy: the lease was taken over or reaped.
WITH held AS MATERIALIZED (
    SELECT h.place, h.id, h.lease_version
    FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS h (id, lease_version, place)
), locked AS MATERIALIZED (
    SELECT o.id
    FROM outbox AS o
    WHERE o.id = ANY ($1::bigint[])
    ORDER BY o.id
    FOR UPDATE OF o SKIP LOCKED
), written AS (
    UPDATE outbox AS o
    SET status = 'pending',
        attempts = greatest(o.attempts - 1, 0),
        lease_owner = NULL,
        lease_until = NULL
    FROM held AS h
    JOIN locked AS l ON l.id = h.id
    WHERE o.id = h.id
      AND o.id = ANY ($1::bigint[])
      AND o.status = 'processing'
      AND o.lease_version = h.lease_version
    RETURNING o.id, o.lease_version
), busy AS (
    SELECT o.id, o.lease_version
    FROM outbox AS o
    WHERE o.id = ANY ($1::bigint[])
      AND o.status = 'processing'
      AND o.id NOT IN (SELECT l.id FROM locked AS l)
)
SELECT w.id IS NOT NULL AS "written!", b.id IS NOT NULL AS "busy!"
FROM held AS h
LEFT JOIN written AS w ON w.id = h.id AND w.lease_version = h.lease_version
LEFT JOIN busy AS b ON b.id = h.id AND b.lease_version = h.lease_version
ORDER BY h.place
