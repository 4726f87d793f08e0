-- Called by Store::stats. How long the oldest undelivered message waits, and what keeps messages from moving.
-- Locks nothing.
-- Never zero rows: always one. A NULL age: nothing is undelivered.
SELECT (SELECT extract(epoch FROM now() - min(o.created_at))::double precision
        FROM outbox AS o
        WHERE o.status IN ('pending', 'processing')) AS oldest_undelivered_seconds,
       (SELECT count(*)
        FROM outbox AS o
        WHERE o.status = 'processing' AND o.lease_until < now()) AS "expired_leases!",
       (SELECT count(*)
        FROM outbox AS o
        WHERE o.status = 'pending' AND o.available_at > now()) AS "not_yet_due!",
       (SELECT count(DISTINCT o.aggregate_id)
        FROM outbox AS o
        WHERE o.status = 'dead') AS "gated_aggregates!",
       (SELECT count(*)
        FROM outbox AS o
        WHERE o.status = 'pending'
          AND EXISTS (
              SELECT FROM outbox AS gate
              WHERE gate.aggregate_id = o.aggregate_id
                AND gate.id < o.id
                AND gate.status = 'dead')) AS "waiting_behind_gates!",
       (SELECT count(*)
        FROM outbox AS o
        WHERE o.status = 'pending'
          AND EXISTS (
              SELECT FROM outbox AS head
              WHERE head.aggregate_id = o.aggregate_id
                AND head.id < o.id
                AND head.status = 'pending'
                AND head.available_at > now())) AS "waiting_behind_not_yet_due!"
