-- Called by Store::show. One whole row, and the head it waits behind, if any.
-- Locks nothing.
-- Zero rows: no such id; it was never there, or it was purged.
SELECT o.id AS "id!",
       o.aggregate_type AS "aggregate_type!",
       o.aggregate_id AS "aggregate_id!",
       o.event_type AS "event_type!",
       o.payload::text AS "payload!",
       o.headers::text AS "headers!",
       o.created_at AS "created_at!",
       o.status AS "status!",
       o.available_at AS "available_at!",
       o.attempts AS "attempts!",
       o.lease_owner,
       o.lease_until,
       o.lease_version AS "lease_version!",
       o.last_error,
       o.done_at,
       o.skip_reason,
       o.broker_message_id,
       o.broker_sequence,
       head.id AS "head_id?",
       head.status AS "head_status?",
       head.available_at AS "head_available_at?"
FROM outbox AS o
LEFT JOIN LATERAL (
    SELECT prev.id, prev.status, prev.available_at
    FROM outbox AS prev
    WHERE (prev.aggregate_id, prev.id) >= (o.aggregate_id, 0::bigint)
      AND (prev.aggregate_id, prev.id) < (o.aggregate_id, o.id)
      AND prev.status IN ('pending', 'processing', 'dead')
      AND o.status IN ('pending', 'processing', 'dead')
    ORDER BY prev.aggregate_id, prev.id
    LIMIT 1
) AS head ON true
WHERE o.id = $1::bigint
