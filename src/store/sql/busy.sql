-- Called by Store::finalize and Store::release, for the rows that were not written: which are still under their lease?
-- Locks nothing.
-- A row that is missing from the answer has lost its lease: it was taken over or reaped, and the new holder decides. A row that is there is locked by somebody else, or the next row of its aggregate is: ask again.
SELECT o.id AS "id!"
FROM unnest($1::bigint[], $2::bigint[]) AS v (id, lease_version)
CROSS JOIN LATERAL (
    SELECT r.id, r.status, r.lease_version
    FROM outbox AS r
    WHERE r.id = v.id
    LIMIT 1
) AS o
WHERE o.status = 'processing'
  AND o.lease_version = v.lease_version
