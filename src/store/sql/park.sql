-- Called by Store::park. Looks at up to $3 rows that have been due for $4 seconds, from the position ($1, $2) on, and parks those that wait behind a row which still has to be claimed, or answered by a person.
-- Locks gates FOR SHARE and the rows to park FOR UPDATE, both SKIP LOCKED: waits for nobody.
-- Never zero rows: always one, the window looked at and how many of its rows were parked.
--
-- The race is with whoever finishes the row in front: it must see the parked row, or nobody ever unparks it. Therefore
-- * not behind a row that is `processing`: a finalize with an older snapshot may already be on its way (one row an
--   aggregate in flight stays unparked);
-- * behind a `pending` row, only if the waiting row is still the version this snapshot saw (xmin): see finalize.sql;
-- * behind a `dead` row, only under its lock: skip.sql takes that lock first and looks for the next row afterwards.
-- The row in front is the *nearest* unfinished one: one that comes in between later is claimed later, too.
WITH looked AS MATERIALIZED (
    SELECT o.aggregate_id, o.id, o.available_at, o.xmin AS version
    FROM outbox AS o
    WHERE o.status = 'pending'
      AND NOT o.parked
      AND o.available_at <= now() - make_interval(secs => $4::double precision)
      AND (o.available_at, o.id) > ($1::timestamptz, $2::bigint)
    ORDER BY o.available_at, o.id
    LIMIT $3::bigint
), behind AS MATERIALIZED (
    SELECT l.id, l.version, nearest.id AS nearest_id, nearest.status
    FROM looked AS l
    CROSS JOIN LATERAL (
        SELECT prev.id, prev.status
        FROM outbox AS prev
        WHERE (prev.aggregate_id, prev.id) >= (l.aggregate_id, 0::bigint)
          AND (prev.aggregate_id, prev.id) < (l.aggregate_id, l.id)
          AND prev.status IN ('pending', 'processing', 'dead')
        ORDER BY prev.aggregate_id DESC, prev.id DESC
        LIMIT 1
    ) AS nearest
    WHERE nearest.status IN ('pending', 'dead')
), waiting AS MATERIALIZED (
    SELECT b.id
    FROM behind AS b
    LEFT JOIN LATERAL (
        SELECT g.status
        FROM outbox AS g
        WHERE b.status = 'dead'
          AND g.id = b.nearest_id
        LIMIT 1
        FOR SHARE OF g SKIP LOCKED
    ) AS gate ON true
    CROSS JOIN LATERAL (
        SELECT o.xmin AS version
        FROM outbox AS o
        WHERE o.id = b.id
        LIMIT 1
        FOR UPDATE OF o SKIP LOCKED
    ) AS own
    WHERE (b.status = 'pending' OR gate.status = 'dead')
      AND own.version = b.version
), parked AS (
    UPDATE outbox AS o
    SET parked = true
    WHERE o.id = ANY (ARRAY(SELECT w.id FROM waiting AS w))
    RETURNING o.id
)
SELECT (SELECT count(*) FROM looked) < $3::bigint AS "ended!",
       (SELECT count(*) FROM parked) AS "parked!",
       coalesce((SELECT max(l.available_at) FROM looked AS l), $1::timestamptz) AS "reached_at!",
       coalesce((SELECT l.id FROM looked AS l ORDER BY l.available_at DESC, l.id DESC LIMIT 1), $2::bigint) AS "reached_id!"
