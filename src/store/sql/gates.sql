-- Called by Store::gates. Dead heads in id order after $1, at most $2, each with what waits behind it.
-- Locks nothing.
-- Zero rows: no aggregate is gated, or the last page was read.
SELECT d.id AS "id!",
       d.aggregate_type AS "aggregate_type!",
       d.aggregate_id AS "aggregate_id!",
       d.event_type AS "event_type!",
       d.attempts AS "attempts!",
       d.last_error,
       d.created_at AS "created_at!",
       greatest(extract(epoch FROM now() - d.created_at), 0)::double precision AS "age_seconds!",
       (SELECT count(*)
        FROM outbox AS w
        WHERE (w.aggregate_id, w.id) > (d.aggregate_id, d.id)
          AND (w.aggregate_id, w.id) <= (d.aggregate_id, 9223372036854775807::bigint)
          AND w.status IN ('pending', 'processing', 'dead')) AS "waiting!"
FROM outbox AS d
WHERE d.status = 'dead'
  AND d.id > $1::bigint
  AND NOT EXISTS (
      SELECT FROM outbox AS prev
      WHERE (prev.aggregate_id, prev.id) >= (d.aggregate_id, 0::bigint)
        AND (prev.aggregate_id, prev.id) < (d.aggregate_id, d.id)
        AND prev.status IN ('pending', 'processing', 'dead'))
ORDER BY d.id
LIMIT $2::bigint
