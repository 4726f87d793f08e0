-- Parking: a due row that waits behind another one leaves outbox_ready, so that a claim does not look at it again.
-- PostgreSQL 15 to 18. Reads the table once, and writers wait for that: about a second for every ten million rows. On a
-- large live table run this by hand before, and the migration finds it done:
--   CREATE INDEX CONCURRENTLY outbox_parked ON outbox (aggregate_id, id) WHERE status = 'pending' AND parked

-- A person who sets the status of a parked row by hand must not be refused because of a hint. Of a row that is not
-- pending, `parked` means nothing.
ALTER TABLE outbox DROP CONSTRAINT outbox_parked_is_pending;

-- Parked rows by aggregate: sweep.sql looks at the oldest of each
CREATE INDEX IF NOT EXISTS outbox_parked ON outbox (aggregate_id, id) WHERE status = 'pending' AND parked;

COMMENT ON COLUMN outbox.available_at IS 'Not claimed before this time (backoff, deferral, scheduled message); set to the time at which the row became the head of its aggregate, if that is later';
COMMENT ON COLUMN outbox.parked IS 'A hint for speed: this pending row waits behind an unfinished one and is left out of outbox_ready; never trusted for order, and without meaning unless pending';
