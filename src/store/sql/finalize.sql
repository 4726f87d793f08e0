-- Called by Store::finalize. Writes one verdict a row, each only if its lease_version is still the current one (P4).
-- Locks rows in id order FOR UPDATE, and waits: two finalizers that overlap (a stale one and its successor) cannot deadlock.
-- A row that is not returned was not changed: its lease was taken over or reaped, and the new holder decides.
--
-- lease_until is not compared: a lease that ran out and that nobody took over still finalizes.
WITH verdict AS MATERIALIZED (
    SELECT v.id, v.lease_version, v.verdict, v.delay, v.error, v.broker_message_id, v.broker_sequence
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::double precision[], $5::text[], $6::text[], $7::text[])
        AS v (id, lease_version, verdict, delay, error, broker_message_id, broker_sequence)
), locked AS MATERIALIZED (
    SELECT o.id
    FROM outbox AS o
    WHERE o.id = ANY ($1::bigint[])
    ORDER BY o.id
    FOR UPDATE OF o
)
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
RETURNING o.id
