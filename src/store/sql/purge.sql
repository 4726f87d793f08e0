-- Called by Store::purge. Deletes one batch of done rows older than $1 seconds, oldest first.
-- Locks done rows by done_at, FOR UPDATE SKIP LOCKED: several purges share the work.
-- Zero rows: nothing that old is left (or another purge holds it).
WITH old AS MATERIALIZED (
    SELECT o.id
    FROM outbox AS o
    WHERE o.status = 'done'
      AND o.done_at < now() - make_interval(secs => $1::double precision)
    ORDER BY o.done_at, o.id
    LIMIT $2::bigint
    FOR UPDATE OF o SKIP LOCKED
)
DELETE FROM outbox AS o
-- a join to the ids could become a walk through the whole primary key; each row is locked and was looked at then
WHERE o.id = ANY (ARRAY(SELECT d.id FROM old AS d))
RETURNING o.id
