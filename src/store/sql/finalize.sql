-- Called by Store::finalize. Writes one verdict a row, each only if its lease_version is still the current one (P4), and makes the next row of each aggregate whose lane ended ready.
-- Locks each row, then the row behind it if that becomes ready, FOR UPDATE SKIP LOCKED: waits for nobody, so a row somebody else has locked holds up no other.
-- A row that is missing from the answer was not written: see busy.sql.
--
-- lease_until is not compared: a lease that ran out and that nobody took over still finalizes.
--
-- The next row is unparked and made due as of now, which puts it behind everything that was ready before (fair) and in
-- front of every claimer's position (found at once). Could it be parked just then, by a park.sql that still sees this row
-- unfinished? park.sql parks only behind a row that is `pending` (or dead, under its lock). This row was pending before
-- the claim that led here, so that a park.sql which saw it pending began before that claim committed, and this statement
-- began after: it sees the waiting row, and either has its lock (park.sql then finds its version changed, and leaves it),
-- or does not get it, and then this row is not written now but asked for again. Only with `insists` it is written all the
-- same: a person's forgotten transaction must not keep a sent message unfinished; sweep.sql looks after the next row.
WITH verdict AS MATERIALIZED (
    SELECT v.id, v.lease_version, v.verdict, v.delay, v.error, v.broker_message_id, v.broker_sequence, v.ends_lane, v.insists
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::double precision[], $5::text[], $6::text[], $7::text[],
                $8::boolean[], $9::boolean[])
        AS v (id, lease_version, verdict, delay, error, broker_message_id, broker_sequence, ends_lane, insists)
), held AS MATERIALIZED (
    SELECT v.id, v.lease_version, v.verdict, v.delay, v.error, v.broker_message_id, v.broker_sequence, ready.id AS ready_id
    FROM verdict AS v
    -- LIMIT keeps conditions on the status out: with them, a plan made for an empty table would read a partial index
    -- from end to end to find one id.
    CROSS JOIN LATERAL (
        SELECT o.aggregate_id, o.status, o.lease_version
        FROM outbox AS o
        WHERE o.id = v.id
        LIMIT 1
        FOR UPDATE OF o SKIP LOCKED
    ) AS own
    LEFT JOIN LATERAL (
        SELECT n.id, n.status
        FROM outbox AS n
        WHERE v.verdict = 'done'
          AND v.ends_lane
          AND (n.aggregate_id, n.id) > (own.aggregate_id, v.id)
          AND (n.aggregate_id, n.id) <= (own.aggregate_id, 9223372036854775807::bigint)
          AND n.status IN ('pending', 'processing', 'dead')
        ORDER BY n.aggregate_id, n.id
        LIMIT 1
    ) AS next ON true
    LEFT JOIN LATERAL (
        SELECT o.id, o.status
        FROM outbox AS o
        WHERE next.status = 'pending'
          AND o.id = next.id
        LIMIT 1
        FOR UPDATE OF o SKIP LOCKED
    ) AS ready ON true
    WHERE own.status = 'processing'
      AND own.lease_version = v.lease_version
      AND (v.insists OR next.status IS DISTINCT FROM 'pending' OR ready.status = 'pending')
), written AS (
    UPDATE outbox AS o
    SET status = CASE h.verdict WHEN 'done' THEN 'done' WHEN 'dead' THEN 'dead' ELSE 'pending' END,
        available_at = CASE WHEN h.verdict IN ('backoff', 'defer')
                            THEN now() + make_interval(secs => h.delay)
                            ELSE o.available_at END,
        attempts = CASE WHEN h.verdict = 'defer' THEN greatest(o.attempts - 1, 0) ELSE o.attempts END,
        last_error = h.error,
        done_at = CASE WHEN h.verdict = 'done' THEN now() END,
        broker_message_id = h.broker_message_id,
        broker_sequence = h.broker_sequence,
        lease_owner = NULL,
        lease_until = NULL
    FROM held AS h
    WHERE o.id = h.id
      AND o.lease_version = h.lease_version
    RETURNING o.id
), readied AS (
    UPDATE outbox AS o
    SET parked = false,
        available_at = greatest(o.available_at, now())
    WHERE o.id = ANY (ARRAY(SELECT h.ready_id FROM held AS h WHERE h.ready_id IS NOT NULL))
)
SELECT w.id AS "id!"
FROM written AS w
