-- Called by Store::release. Hands back rows that were claimed and never tried: pending again and due as of now, attempt refunded.
-- Locks each row FOR UPDATE SKIP LOCKED, as finalize.sql does.
-- A row that is missing from the answer was not written: see busy.sql.
--
-- What was not sent was not tried: a claim that was the first leaves no trace ($3).
--
-- Due as of now, because claimers look from a position in (available_at, id) on that may be past the old one.
WITH held AS MATERIALIZED (
    SELECT v.id, v.lease_version, v.is_first
    FROM unnest($1::bigint[], $2::bigint[], $3::boolean[]) AS v (id, lease_version, is_first)
    CROSS JOIN LATERAL (
        SELECT o.status, o.lease_version
        FROM outbox AS o
        WHERE o.id = v.id
        LIMIT 1
        FOR UPDATE OF o SKIP LOCKED
    ) AS own
    WHERE own.status = 'processing'
      AND own.lease_version = v.lease_version
)
UPDATE outbox AS o
SET status = 'pending',
    available_at = greatest(o.available_at, now()),
    attempts = greatest(o.attempts - 1, 0),
    first_tried_at = CASE WHEN h.is_first THEN NULL ELSE o.first_tried_at END,
    lease_owner = NULL,
    lease_until = NULL
FROM held AS h
WHERE o.id = h.id
  AND o.lease_version = h.lease_version
RETURNING o.id AS "id!"
