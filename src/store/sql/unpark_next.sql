-- Called by Store::skip, in the same transaction and after skip.sql: the row behind the skipped one $1 becomes ready.
-- Locks that row, and waits.
-- Zero rows: nothing waits behind it, or what does is not pending.
--
-- A statement of its own: its snapshot is younger than the lock on the skipped row, so that it sees every row that park.sql
-- parked behind it under that lock.
UPDATE outbox AS o
SET parked = false,
    available_at = greatest(o.available_at, now())
WHERE o.id = (
    SELECT n.id
    FROM (SELECT s.aggregate_id, s.id FROM outbox AS s WHERE s.id = $1::bigint) AS skipped
    CROSS JOIN LATERAL (
        SELECT w.id
        FROM outbox AS w
        WHERE (w.aggregate_id, w.id) > (skipped.aggregate_id, skipped.id)
          AND (w.aggregate_id, w.id) <= (skipped.aggregate_id, 9223372036854775807::bigint)
          AND w.status IN ('pending', 'processing', 'dead')
        ORDER BY w.aggregate_id, w.id
        LIMIT 1
    ) AS n)
  AND o.status = 'pending'
RETURNING o.id AS "id!"
