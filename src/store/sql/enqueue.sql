-- Called by enqueue and enqueue_many, inside the producer's own transaction.
-- Locks nothing but the new rows.
-- Never fewer rows than messages: an INSERT writes all of them or fails.
--
-- ORDER BY is evaluated before the identity is drawn, so ids rise in the order the messages were given.
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers)
SELECT m.aggregate_type, m.aggregate_id, m.event_type, m.payload::jsonb, m.headers::jsonb
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
    WITH ORDINALITY AS m (aggregate_type, aggregate_id, event_type, payload, headers, place)
ORDER BY m.place
RETURNING id
