-- Called by Store::stats. How many attempts the undelivered messages have spent.
-- Locks nothing.
-- Zero rows: nothing is undelivered.
SELECT o.attempts AS "attempts!", count(*) AS "count!"
FROM outbox AS o
WHERE o.status IN ('pending', 'processing')
GROUP BY o.attempts
ORDER BY o.attempts
