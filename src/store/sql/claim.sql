-- Called by Store::claim. Takes up to $4 rows: heads of aggregates first, then the rows right behind each head, in order.
-- Locks heads (expired leases by lease_until, then due rows by available_at), then followers by id, all FOR UPDATE SKIP LOCKED: waits for nobody.
-- Zero rows: nothing is due, or every due row waits behind an unfinished one (P2, P3) or is being claimed by somebody else.
--
-- NOT EXISTS is the truth about order. It is a row comparison and not `aggregate_id = ... AND id < ...` because the
-- latter lets the planner walk the primary key, and because no hash join over the backlog can answer a row comparison.
-- It looks for the *nearest* earlier row, backwards: a row that waits finds the one before it at once. Forwards, it would
-- first step over the dead index entries of everything its aggregate has finished since the last vacuum (1,000 rows
-- waiting behind 800 finished ones under an old snapshot: 1,250,000 buffers a claim, and 5,300 this way).
-- An old snapshot cannot break it: a finished row never becomes unfinished again, so stale eyes only see more gates.
WITH expired AS MATERIALIZED (
    -- Takeover: the lease ran out, attempts are left. Its own scan, since an OR with the due rows defeats both indexes.
    SELECT o.id, o.aggregate_id, o.attempts
    FROM outbox AS o
    WHERE o.status = 'processing'
      AND o.lease_until < now()
      AND o.attempts < $3::integer
      AND NOT EXISTS (
          SELECT FROM (
              SELECT FROM outbox AS prev
              WHERE (prev.aggregate_id, prev.id) >= (o.aggregate_id, 0::bigint)
                AND (prev.aggregate_id, prev.id) < (o.aggregate_id, o.id)
                AND prev.status IN ('pending', 'processing', 'dead')
              ORDER BY prev.aggregate_id DESC, prev.id DESC
              LIMIT 1) AS nearest)
    ORDER BY o.lease_until, o.id
    LIMIT $4::bigint
    FOR UPDATE OF o SKIP LOCKED
), due AS MATERIALIZED (
    SELECT o.id, o.aggregate_id, o.attempts
    FROM outbox AS o
    WHERE o.status = 'pending'
      AND NOT o.parked
      AND o.available_at <= now()
      AND NOT EXISTS (
          SELECT FROM (
              SELECT FROM outbox AS prev
              WHERE (prev.aggregate_id, prev.id) >= (o.aggregate_id, 0::bigint)
                AND (prev.aggregate_id, prev.id) < (o.aggregate_id, o.id)
                AND prev.status IN ('pending', 'processing', 'dead')
              ORDER BY prev.aggregate_id DESC, prev.id DESC
              LIMIT 1) AS nearest)
    ORDER BY o.available_at, o.id
    LIMIT $4::bigint - (SELECT count(*) FROM expired)
    FOR UPDATE OF o SKIP LOCKED
), head AS MATERIALIZED (
    SELECT id, aggregate_id, attempts FROM expired
    UNION ALL
    SELECT id, aggregate_id, attempts FROM due
), behind AS MATERIALIZED (
    -- The unfinished rows right behind each head. A head that has failed before runs alone, so that a poison head
    -- cannot use up the attempts of the rows behind it.
    SELECT h.id AS head_id, f.id, f.place,
           bool_and(f.status = 'pending' AND f.available_at <= now())
               OVER (PARTITION BY h.id ORDER BY f.id) AS joins_run
    FROM head AS h
    CROSS JOIN LATERAL (
        SELECT n.id, n.status, n.available_at, row_number() OVER (ORDER BY n.aggregate_id, n.id) AS place
        FROM outbox AS n
        WHERE (n.aggregate_id, n.id) > (h.aggregate_id, h.id)
          AND (n.aggregate_id, n.id) <= (h.aggregate_id, 9223372036854775807::bigint)
          AND n.status IN ('pending', 'processing', 'dead')
        ORDER BY n.aggregate_id, n.id
        LIMIT CASE WHEN h.attempts = 0
                   THEN least($5::bigint - 1, $4::bigint - (SELECT count(*) FROM head))
                   ELSE 0 END
    ) AS f
), locked AS MATERIALIZED (
    -- Re-checks each follower's newest version: one that changed since the snapshot is left out here ...
    SELECT o.id
    FROM outbox AS o
    WHERE o.id = ANY (ARRAY(SELECT b.id FROM behind AS b WHERE b.joins_run))
      AND o.status = 'pending'
      AND o.available_at <= now()
    ORDER BY o.id
    FOR UPDATE OF o SKIP LOCKED
), run AS (
    SELECT h.id, 0::bigint AS place, true AS unbroken FROM head AS h
    UNION ALL
    -- ... and ends its run there: a row joins only if every row between it and its head was locked too.
    SELECT b.id, b.place, b.place = count(*) OVER (PARTITION BY b.head_id ORDER BY b.place)
    FROM behind AS b
    JOIN locked USING (id)
), picked AS MATERIALIZED (
    SELECT id FROM run WHERE unbroken ORDER BY place, id LIMIT $4::bigint
), claimed AS (
    UPDATE outbox AS o
    SET status = 'processing',
        parked = false,
        lease_owner = $1::text,
        lease_until = now() + make_interval(secs => $2::double precision),
        lease_version = o.lease_version + 1,
        -- a count at the column's maximum stays there: one row must not fail every claim
        attempts = least(o.attempts, 2147483646) + 1
    FROM picked
    WHERE o.id = picked.id
      AND o.id = ANY (ARRAY(SELECT p.id FROM picked AS p))
    RETURNING o.id, o.lease_version, o.attempts, o.aggregate_type, o.aggregate_id, o.event_type,
              o.payload, o.headers, o.created_at
)
SELECT c.id AS "id!",
       c.lease_version AS "lease_version!",
       c.attempts AS "attempts!",
       c.aggregate_type AS "aggregate_type!",
       c.aggregate_id AS "aggregate_id!",
       c.event_type AS "event_type!",
       c.payload::text AS "payload!",
       c.headers::text AS "headers!",
       greatest(extract(epoch FROM now() - c.created_at), 0)::double precision AS "age_seconds!"
FROM claimed AS c
-- RETURNING has no order of its own
ORDER BY c.aggregate_id, c.id
