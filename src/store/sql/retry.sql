-- Called by Store::retry, a person's answer to a gate: the dead row goes again, with its attempts afresh.
-- Locks the one row, and waits.
-- Zero rows: it is no longer dead, or no longer the death the person looked at (lease_version moved on).
UPDATE outbox
SET status = 'pending',
    -- it was parked only if a person declared it dead by hand
    parked = false,
    attempts = 0,
    available_at = now()
WHERE id = $1::bigint
  AND status = 'dead'
  AND lease_version = $2::bigint
RETURNING id
