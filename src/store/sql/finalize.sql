-- Called by Store::finalize. Writes one verdict a row, each only if its lease_version is still the current one (P4).
-- Locks rows in id order FOR UPDATE SKIP LOCKED: waits for nobody, so a row somebody else has locked holds up no other.
-- One row a verdict. Neither written nor busy: the lease was taken over or reaped, and the new holder decides.
--
-- Busy: still under this lease, and locked by somebody else: ask again.
-- lease_until is not compared: a lease that ran out and that nobody took over still finalizes.
WITH verdict AS MATERIALIZED (
    SELECT v.place, v.id, v.lease_version, v.verdict, v.delay, v.error, v.broker_message_id, v.broker_sequence
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::double precision[], $5::text[], $6::text[], $7::text[])
        WITH ORDINALITY AS v (id, lease_version, verdict, delay, error, broker_message_id, broker_sequence, place)
), locked AS MATERIALIZED (
    SELECT o.id
    FROM outbox AS o
    WHERE o.id = ANY ($1::bigint[])
    ORDER BY o.id
    FOR UPDATE OF o SKIP LOCKED
), written AS (
    UPDATE outbox AS o
    SET status = CASE v.verdict WHEN 'done' THEN 'done' WHEN 'dead' THEN 'dead' ELSE 'pending' END,
        available_at = CASE WHEN v.verdict IN ('backoff', 'defer')
                            THEN now() + make_interval(secs => v.delay)
                            ELSE o.available_at END,
        attempts = CASE WHEN v.verdict = 'defer' THEN greatest(o.attempts - 1, 0) ELSE o.attempts END,
        last_error = v.error,
        done_at = CASE WHEN v.verdict = 'done' THEN now() END,
        broker_message_id = v.broker_message_id,
        broker_sequence = v.broker_sequence,
        lease_owner = NULL,
        lease_until = NULL
    FROM verdict AS v
    JOIN locked AS l ON l.id = v.id
    WHERE o.id = v.id
      AND o.id = ANY ($1::bigint[])
      AND o.status = 'processing'
      AND o.lease_version = v.lease_version
    RETURNING o.id, o.lease_version
), busy AS (
    SELECT o.id, o.lease_version
    FROM outbox AS o
    WHERE o.id = ANY ($1::bigint[])
      AND o.status = 'processing'
      AND o.id NOT IN (SELECT l.id FROM locked AS l)
)
SELECT w.id IS NOT NULL AS "written!", b.id IS NOT NULL AS "busy!"
FROM verdict AS v
LEFT JOIN written AS w ON w.id = v.id AND w.lease_version = v.lease_version
LEFT JOIN busy AS b ON b.id = v.id AND b.lease_version = v.lease_version
ORDER BY v.place
