-- When a row was first tried: SQS drops copies for five minutes from then on. PostgreSQL 15 to 18. Reads and rewrites nothing.

ALTER TABLE outbox ADD COLUMN first_tried_at timestamptz;

ALTER TABLE outbox ADD CONSTRAINT outbox_first_tried_at_in_calendar CHECK (
    first_tried_at >= '0001-01-01 00:00:00+00' AND first_tried_at < '10000-01-01 00:00:00+00') NOT VALID;

COMMENT ON COLUMN outbox.first_tried_at IS 'When it was first claimed to be sent; a send more than five minutes later may reach consumers as a second copy; NULL if never, or handed back untried';
