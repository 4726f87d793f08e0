-- Called by Store::sweep. Looks at the oldest parked row of up to $2 aggregates after the aggregate $1, and unparks those with no unfinished row in front: heads that nobody would ever look at.
-- Locks those rows FOR UPDATE SKIP LOCKED: waits for nobody. One sweep at a time in a database, by a transaction's advisory lock.
-- Never zero rows: always one; no aggregate at all if there are no more, or if another dispatcher sweeps just now.
--
-- Finalize and skip unpark in the statement or transaction that finishes the row in front, so that only a change by hand
-- (a status written, a row deleted) leaves a stranded head. A jump from aggregate to aggregate costs one probe each,
-- however many of their rows are parked.
WITH RECURSIVE turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('outbox sweep', 0)) AS is_mine
), aggregate AS (
    (SELECT o.aggregate_id, o.id, 1::bigint AS nth
     FROM outbox AS o
     WHERE (SELECT t.is_mine FROM turn AS t)
       AND o.status = 'pending'
       AND o.parked
       AND o.aggregate_id > $1::text
     ORDER BY o.aggregate_id, o.id
     LIMIT 1)
    UNION ALL
    SELECT following.aggregate_id, following.id, a.nth + 1
    FROM aggregate AS a
    CROSS JOIN LATERAL (
        SELECT o.aggregate_id, o.id
        FROM outbox AS o
        WHERE o.status = 'pending'
          AND o.parked
          AND o.aggregate_id > a.aggregate_id
        ORDER BY o.aggregate_id, o.id
        LIMIT 1
    ) AS following
    WHERE a.nth < $2::bigint
), stranded AS MATERIALIZED (
    SELECT own.id
    FROM aggregate AS a
    CROSS JOIN LATERAL (
        SELECT o.id, o.status, o.parked
        FROM outbox AS o
        WHERE o.id = a.id
        LIMIT 1
        FOR UPDATE OF o SKIP LOCKED
    ) AS own
    WHERE own.status = 'pending'
      AND own.parked
      AND NOT EXISTS (
          SELECT FROM (
              SELECT FROM outbox AS prev
              WHERE (prev.aggregate_id, prev.id) >= (a.aggregate_id, 0::bigint)
                AND (prev.aggregate_id, prev.id) < (a.aggregate_id, a.id)
                AND prev.status IN ('pending', 'processing', 'dead')
              ORDER BY prev.aggregate_id DESC, prev.id DESC
              LIMIT 1) AS nearest)
), unparked AS (
    UPDATE outbox AS o
    SET parked = false,
        available_at = greatest(o.available_at, now())
    WHERE o.id = ANY (ARRAY(SELECT s.id FROM stranded AS s))
    RETURNING o.id
)
SELECT (SELECT a.aggregate_id FROM aggregate AS a ORDER BY a.nth DESC LIMIT 1) AS "reached?",
       (SELECT count(*) FROM aggregate) < $2::bigint AS "ended!",
       ARRAY(SELECT u.id FROM unparked AS u ORDER BY u.id) AS "unparked!"
