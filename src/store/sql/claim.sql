-- Called by Store::claim. Takes up to $4 rows and $6 bytes: heads of aggregates first, then, up to $11 rows, those right behind each head, in order.
-- Locks expired leases by lease_until, then heads by available_at, then the rows behind them place by place, all FOR UPDATE SKIP LOCKED: waits for nobody.
-- Never zero rows: always what was looked at, once beside every row claimed, and alone (id NULL) if there was none.
--
-- The cost is that of two windows and of what is returned: $7 entries of outbox_ready from the position ($8, $9) on, up to
-- the tail ($13, $14), $15 from the tail on (and $12 and $16 that are stepped over), one probe an aggregate seen there, up to
-- $4 rows locked and written. Everything else about the table does not matter.
--
-- NOT EXISTS is the truth about order (P2, P3); the window, the position and `parked` only decide where to look. It is a
-- row comparison and not `aggregate_id = ... AND id < ...` because the latter lets the planner walk the primary key, and
-- because no hash join over the backlog can answer a row comparison. It looks for the *nearest* earlier row, backwards: a
-- row that waits finds the one before it at once. Forwards, it would first step over the dead index entries of everything
-- its aggregate has finished since the last vacuum.
-- An old snapshot cannot break it: a finished row never becomes unfinished again, so stale eyes only see more gates. So it
-- may come before the lock, which only has to see that the head itself is still pending and due.
--
-- Rows are looked up by (aggregate_id, id), which is cheap by whichever index; by id alone and with their status, a plan
-- made for an empty table would read outbox_unfinished from end to end.
WITH backlog AS MATERIALIZED (
    -- From the position on towards the tail: what has been due for longer, and what turned up behind an earlier position.
    -- Others are at the first $12 of them.
    SELECT o.aggregate_id, o.aggregate_type, o.id, o.available_at
    FROM outbox AS o
    WHERE o.status = 'pending'
      AND NOT o.parked
      AND (o.available_at, o.id) > ($8::timestamptz, $9::bigint)
      -- and no `available_at <= now()` beside it: with that, PostgreSQL would not stop here but read on to the end
      AND (o.available_at, o.id) <= (least(coalesce($13::timestamptz, now() - interval '200 milliseconds'), now()), coalesce($14::bigint, 0))
    ORDER BY o.available_at, o.id
    OFFSET $12::bigint
    LIMIT $7::bigint
), tail AS MATERIALIZED (
    -- From the tail on: what has become due since. A long backlog, of rows that wait maybe, must not keep it waiting, too.
    SELECT o.aggregate_id, o.aggregate_type, o.id, o.available_at
    FROM outbox AS o
    WHERE o.status = 'pending'
      AND NOT o.parked
      AND o.available_at <= now()
      AND (o.available_at, o.id) > (coalesce($13::timestamptz, now() - interval '200 milliseconds'), coalesce($14::bigint, 0))
    ORDER BY o.available_at, o.id
    OFFSET $16::bigint
    LIMIT $15::bigint
), looked AS MATERIALIZED (
    SELECT l.aggregate_id, l.id, l.available_at, row_number() OVER (ORDER BY l.available_at, l.id) AS nth,
           l.aggregate_type = ANY ($17::text[]) AS is_excepted
    FROM (SELECT * FROM backlog UNION ALL SELECT * FROM tail) AS l
), oldest AS MATERIALIZED (
    -- Only the oldest row of an aggregate can be its head: one probe an aggregate, not one a row. None where that row is of
    -- a type whose destination is down ($17): such rows cost no more than a look.
    SELECT n.aggregate_id, n.id, n.nth
    FROM (SELECT DISTINCT ON (l.aggregate_id) l.aggregate_id, l.id, l.nth, l.is_excepted
          FROM looked AS l
          ORDER BY l.aggregate_id, l.id) AS n
    WHERE NOT n.is_excepted
    ORDER BY n.nth
), expired AS MATERIALIZED (
    -- Takeover: the lease ran out, attempts are left. Its own scan, since an OR with the due rows defeats both indexes.
    -- Only when asked ($10): under an old snapshot this index keeps an entry of everything that was ever claimed.
    SELECT o.aggregate_id, o.id, o.attempts, o.size_bytes
    FROM outbox AS o
    WHERE $10::boolean
      AND o.status = 'processing'
      AND o.lease_until < now()
      AND o.attempts < $3::integer
      AND o.aggregate_type <> ALL ($17::text[])
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
), free AS MATERIALIZED (
    -- The heads. Read, like any CTE, only as far as somebody asks for the next one: until the batch is full.
    SELECT n.aggregate_id, n.id, n.nth
    FROM oldest AS n
    WHERE NOT EXISTS (
        SELECT FROM (
            SELECT FROM outbox AS prev
            WHERE (prev.aggregate_id, prev.id) >= (n.aggregate_id, 0::bigint)
              AND (prev.aggregate_id, prev.id) < (n.aggregate_id, n.id)
              AND prev.status IN ('pending', 'processing', 'dead')
            ORDER BY prev.aggregate_id DESC, prev.id DESC
            LIMIT 1) AS nearest)
), due AS MATERIALIZED (
    SELECT h.aggregate_id, h.id, h.attempts, h.size_bytes, f.nth
    FROM free AS f
    CROSS JOIN LATERAL (
        SELECT o.aggregate_id, o.id, o.attempts, o.size_bytes
        FROM outbox AS o
        WHERE o.aggregate_id = f.aggregate_id
          AND o.id = f.id
          AND o.status = 'pending'
          AND o.available_at <= now()
        FOR UPDATE OF o SKIP LOCKED
    ) AS h
    LIMIT $4::bigint - (SELECT count(*) FROM expired)
), head AS MATERIALIZED (
    SELECT e.aggregate_id, e.id, e.attempts, e.size_bytes FROM expired AS e
    UNION ALL
    SELECT d.aggregate_id, d.id, d.attempts, d.size_bytes FROM due AS d
), behind AS MATERIALIZED (
    -- The rows right behind each head, as long as the claim stays within $11 rows: all second rows before any third, so that
    -- what the heads left is shared evenly. A head that has failed before runs alone, so that a poison head cannot use up
    -- the attempts of the rows behind it. Chosen before they are locked: a lock is written to disk. Up to four times an
    -- even share is looked at, in case others have fewer.
    SELECT h.id AS head_id, f.aggregate_id, f.id, f.place
    FROM head AS h
    CROSS JOIN (SELECT count(*) AS heads, greatest(least($4::bigint, $11::bigint) - count(*), 0) AS room FROM head) AS left_over
    CROSS JOIN LATERAL (
        SELECT n.aggregate_id, n.id, row_number() OVER (ORDER BY n.aggregate_id, n.id) AS place
        FROM outbox AS n
        WHERE (n.aggregate_id, n.id) > (h.aggregate_id, h.id)
          AND (n.aggregate_id, n.id) <= (h.aggregate_id, 9223372036854775807::bigint)
          AND n.status IN ('pending', 'processing', 'dead')
        ORDER BY n.aggregate_id, n.id
        LIMIT CASE WHEN h.attempts = 0 AND left_over.room > 0
                   THEN least(greatest($5::bigint - 1, 0), 4 * (left_over.room / left_over.heads + 1))
                   ELSE 0 END
    ) AS f
    ORDER BY f.place, f.id
    LIMIT greatest(least($4::bigint, $11::bigint) - (SELECT count(*) FROM head), 0)
), run AS MATERIALIZED (
    SELECT h.id, 0::bigint AS place, h.size_bytes
    FROM head AS h
    UNION ALL
    SELECT f.id, f.place, f.size_bytes
    FROM (
        -- A row joins only if every row between it and its head was locked too: one that is not pending, not due yet,
        -- changed since the snapshot or locked by somebody else ends the run before it.
        SELECT b.id, b.place, l.size_bytes,
               b.place = row_number() OVER (PARTITION BY b.head_id ORDER BY b.place) AS unbroken
        FROM behind AS b
        CROSS JOIN LATERAL (
            SELECT o.size_bytes
            FROM outbox AS o
            WHERE o.aggregate_id = b.aggregate_id
              AND o.id = b.id
              AND o.status = 'pending'
              AND o.available_at <= now()
            FOR UPDATE OF o SKIP LOCKED
        ) AS l
    ) AS f
    WHERE f.unbroken
), ranked AS MATERIALIZED (
    SELECT r.id, r.place, row_number() OVER w AS nth, sum(r.size_bytes) OVER w AS bytes
    FROM run AS r
    WINDOW w AS (ORDER BY r.place, r.id ROWS UNBOUNDED PRECEDING)
), picked AS MATERIALIZED (
    -- At least one, however large.
    SELECT r.id
    FROM ranked AS r
    WHERE r.nth <= $4::bigint
      AND (r.place = 0 OR r.nth <= $11::bigint)
      AND (r.nth = 1 OR r.bytes <= $6::bigint)
), claimed AS (
    UPDATE outbox AS o
    SET status = 'processing',
        parked = false,
        lease_owner = $1::text,
        lease_until = now() + make_interval(secs => $2::double precision),
        lease_version = o.lease_version + 1,
        -- a count at the column's maximum stays there: one row must not fail every claim
        attempts = least(o.attempts, 2147483646) + 1,
        first_tried_at = coalesce(o.first_tried_at, now())
    WHERE o.id = ANY (ARRAY(SELECT p.id FROM picked AS p))
    RETURNING o.id, o.lease_version, o.attempts, o.aggregate_type, o.aggregate_id, o.event_type,
              o.payload, o.headers, o.created_at, o.first_tried_at
), seen AS (
    SELECT (SELECT count(*) FROM backlog) AS backlog_rows,
           (SELECT count(*) FROM tail) AS tail_rows,
           (SELECT count(*) FROM due) >= $4::bigint - (SELECT count(*) FROM expired) AS is_full
), dealt AS (
    SELECT s.is_full, s.backlog_rows, s.tail_rows,
           -- how many of the rows looked at this claim has dealt with: those before a head that the batch had no room for, by
           -- count or by bytes, so that the next claim looks there again
           least(CASE WHEN s.is_full THEN (SELECT coalesce(max(d.nth), 0) FROM due AS d)
                      ELSE s.backlog_rows + s.tail_rows END,
                 (SELECT min(d.nth) - 1 FROM due AS d WHERE d.id NOT IN (SELECT p.id FROM picked AS p))
           ) AS rows
    FROM seen AS s
), ended AS (
    SELECT $12::bigint = 0 AND d.rows >= d.backlog_rows AND d.backlog_rows < $7::bigint AS backlog,
           $16::bigint = 0 AND d.rows >= d.backlog_rows + d.tail_rows AND d.tail_rows < $15::bigint AS tail
    FROM dealt AS d
), lost AS (
    -- Heads that somebody else took or had locked just then.
    SELECT count(*) FILTER (WHERE f.nth <= d.backlog_rows) AS of_backlog,
           count(*) FILTER (WHERE f.nth > d.backlog_rows) AS of_tail
    FROM dealt AS d
    CROSS JOIN free AS f
    WHERE NOT d.is_full
      AND f.nth NOT IN (SELECT u.nth FROM due AS u)
), reached AS MATERIALIZED (
    -- The last row of each window that was dealt with; none where rows were stepped over and fewer than a window are
    -- left behind them. At the end of the due rows, the tail is 0.2 s ago: what transactions of up to 0.2 s commit
    -- meanwhile is seen by the next claim, what longer ones commit when a look begins at the front again.
    SELECT e.backlog AS backlog_ended, e.tail AS tail_ended,
           CASE WHEN e.tail THEN now() - interval '200 milliseconds'
                ELSE coalesce(t.available_at, $13::timestamptz, now() - interval '200 milliseconds') END AS tail_at,
           CASE WHEN e.tail THEN 0 ELSE coalesce(t.id, $14::bigint, 0) END AS tail_id,
           coalesce(b.available_at, $8::timestamptz) AS backlog_at,
           coalesce(b.id, $9::bigint) AS backlog_id,
           (SELECT l.of_backlog FROM lost AS l) AS lost_of_backlog,
           (SELECT l.of_tail FROM lost AS l) AS lost_of_tail,
           (SELECT count(*) FROM oldest) AS aggregates,
           w.waiting,
           w.excepted
    FROM dealt AS d
    CROSS JOIN ended AS e
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting, count(*) FILTER (WHERE l.is_excepted) AS excepted
        FROM looked AS l
        WHERE l.nth <= d.rows
          AND l.id NOT IN (SELECT p.id FROM picked AS p)
    ) AS w
    LEFT JOIN looked AS b ON b.nth = least(d.rows, d.backlog_rows) AND ($12::bigint = 0 OR d.backlog_rows >= $7::bigint)
    LEFT JOIN looked AS t ON t.nth = d.rows AND d.rows > d.backlog_rows AND ($16::bigint = 0 OR d.tail_rows >= $15::bigint)
)
SELECT r.backlog_ended AND r.tail_ended AS "ended!",
       r.aggregates AS "aggregates!",
       r.waiting AS "waiting!",
       r.excepted AS "excepted!",
       r.lost_of_backlog AS "lost_of_backlog!",
       r.lost_of_tail AS "lost_of_tail!",
       CASE WHEN r.backlog_ended THEN r.tail_at ELSE r.backlog_at END AS "reached_at!",
       CASE WHEN r.backlog_ended THEN r.tail_id ELSE r.backlog_id END AS "reached_id!",
       r.tail_at AS "tail_at!",
       r.tail_id AS "tail_id!",
       c.id AS "id?",
       c.lease_version AS "lease_version?",
       c.attempts AS "attempts?",
       c.aggregate_type AS "aggregate_type?",
       c.aggregate_id AS "aggregate_id?",
       c.event_type AS "event_type?",
       c.payload::text AS "payload?",
       c.headers::text AS "headers?",
       greatest(extract(epoch FROM now() - c.created_at), 0)::double precision AS "age_seconds?",
       CASE WHEN c.first_tried_at <> now()
            THEN greatest(extract(epoch FROM now() - c.first_tried_at), 0)::double precision END AS "first_tried_seconds?"
FROM reached AS r
LEFT JOIN claimed AS c ON true
-- RETURNING has no order of its own
ORDER BY c.aggregate_id, c.id
