-- Called by Store::skip, a person's answer to a gate: the dead row is done without ever being sent, and says why.
-- Locks the one row, and waits.
-- Zero rows: it is no longer dead, or no longer the death the person looked at (lease_version moved on).
UPDATE outbox
SET status = 'done',
    done_at = now(),
    skip_reason = $3::text
WHERE id = $1::bigint
  AND status = 'dead'
  AND lease_version = $2::bigint
RETURNING id
