-- Called by Store::stats. Rows by status, in the order of the state machine; a status without rows is there with 0.
-- Locks nothing. Reads the whole table: for people, not for a scrape.
-- Never zero rows: always four.
SELECT s.status AS "status!", count(o.id) AS "count!"
FROM unnest(ARRAY['pending', 'processing', 'done', 'dead']) WITH ORDINALITY AS s (status, place)
LEFT JOIN outbox AS o ON o.status = s.status
GROUP BY s.status, s.place
ORDER BY s.place
