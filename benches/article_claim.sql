-- The comparator: the ordered claim as the source article has it, in meaning. One scan for due rows and for leases
-- that ran out, by id, heads only; what is returned is what the article's publisher needs.
WITH picked AS (
    SELECT o.id
    FROM outbox AS o
    WHERE ((o.status = 'pending' AND o.available_at <= now())
           OR (o.status = 'processing' AND o.lease_until < now() AND o.attempts < $3))
      AND NOT EXISTS (
          SELECT 1
          FROM outbox AS prev
          WHERE prev.aggregate_id = o.aggregate_id
            AND prev.id < o.id
            AND prev.status IN ('pending', 'processing', 'dead'))
    ORDER BY o.id
    LIMIT $4
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox AS o
SET status = 'processing',
    lease_owner = $1,
    lease_until = now() + make_interval(secs => $2),
    lease_version = o.lease_version + 1,
    attempts = o.attempts + 1
FROM picked
WHERE o.id = picked.id
RETURNING o.id, o.lease_version, o.attempts, o.aggregate_id, o.event_type, o.payload::text
