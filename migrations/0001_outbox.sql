-- The outbox table, its state machine as named constraints, and the five indexes the dispatcher lives on.
-- PostgreSQL 15 to 18. Forward only. Promises P1-P9 are listed in src/lib.rs.

CREATE TABLE outbox (
    id                bigint      GENERATED ALWAYS AS IDENTITY,
    aggregate_type    text        NOT NULL,
    -- The "C" collation keeps the (aggregate_id, id) index independent of the operating system's locale
    -- library: an upgrade of that library can silently reorder an index, and the head check relies on this one.
    aggregate_id      text        COLLATE "C" NOT NULL,
    event_type        text        NOT NULL,
    payload           jsonb       NOT NULL,
    headers           jsonb       NOT NULL DEFAULT '{}',
    created_at        timestamptz NOT NULL DEFAULT now(),
    status            text        NOT NULL DEFAULT 'pending',
    available_at      timestamptz NOT NULL DEFAULT now(),
    attempts          integer     NOT NULL DEFAULT 0,
    lease_owner       text,
    lease_until       timestamptz,
    lease_version     bigint      NOT NULL DEFAULT 0,
    parked            boolean     NOT NULL DEFAULT false,
    last_error        text,
    done_at           timestamptz,
    skip_reason       text,
    broker_message_id text,
    broker_sequence   text,
    -- jsonb can be far shorter than its text: 1e131071 is a few bytes here and 131,072 digits there. Computed when the
    -- contents are written, never by a claim or a finalize.
    size_bytes        integer     NOT NULL GENERATED ALWAYS AS (octet_length(payload::text) + octet_length(headers::text)) STORED,

    CONSTRAINT outbox_pkey PRIMARY KEY (id),
    -- claim.sql bounds its index ranges by (aggregate_id, 0)
    CONSTRAINT outbox_id_positive CHECK (id > 0),
    CONSTRAINT outbox_aggregate_type_not_empty CHECK (aggregate_type <> ''),
    CONSTRAINT outbox_aggregate_id_not_empty CHECK (aggregate_id <> ''),
    CONSTRAINT outbox_event_type_not_empty CHECK (event_type <> ''),
    CONSTRAINT outbox_headers_object CHECK (jsonb_typeof(headers) = 'object'),
    -- Four times what SQS takes. A claim reads payloads as text: one without bounds would fail every claim.
    CONSTRAINT outbox_size_bounded CHECK (size_bytes <= 4194304),
    -- Infinity and years that no calendar library holds: PostgreSQL 15 cannot even subtract them.
    CONSTRAINT outbox_times_in_calendar CHECK (
        created_at >= '0001-01-01 00:00:00+00' AND created_at < '10000-01-01 00:00:00+00'
        AND available_at >= '0001-01-01 00:00:00+00' AND available_at < '10000-01-01 00:00:00+00'
        AND lease_until >= '0001-01-01 00:00:00+00' AND lease_until < '10000-01-01 00:00:00+00'
        AND done_at >= '0001-01-01 00:00:00+00' AND done_at < '10000-01-01 00:00:00+00'),
    CONSTRAINT outbox_status_known CHECK (status IN ('pending', 'processing', 'done', 'dead')),
    CONSTRAINT outbox_attempts_not_negative CHECK (attempts >= 0),
    CONSTRAINT outbox_lease_while_processing CHECK (
        (status = 'processing') = (lease_until IS NOT NULL)
        AND (status = 'processing') = (lease_owner IS NOT NULL)),
    CONSTRAINT outbox_done_at_when_done CHECK ((status = 'done') = (done_at IS NOT NULL)),
    CONSTRAINT outbox_skipped_is_done CHECK (skip_reason IS NULL OR status = 'done'),
    CONSTRAINT outbox_parked_is_pending CHECK (NOT parked OR status = 'pending')
) WITH (
    -- Every row is rewritten at least twice (claim, finalize): leave room for the new versions on the same page,
    -- and let autovacuum come by row count, not by a share of a table that keeps its done rows.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);

-- Due rows, earliest first: claim.sql
CREATE INDEX outbox_ready ON outbox (available_at, id) WHERE status = 'pending' AND NOT parked;
-- Leases, earliest end first: claim.sql (takeover) and reap.sql
CREATE INDEX outbox_leased ON outbox (lease_until, id) WHERE status = 'processing';
-- The head check: is there an earlier unfinished row of this aggregate? claim.sql, gates.sql, show.sql
CREATE INDEX outbox_unfinished ON outbox (aggregate_id, id) WHERE status IN ('pending', 'processing', 'dead');
-- Dead rows, oldest first: gates.sql
CREATE INDEX outbox_dead ON outbox (id) WHERE status = 'dead';
-- Finished rows, oldest first: purge.sql
CREATE INDEX outbox_done ON outbox (done_at, id) WHERE status = 'done';

COMMENT ON TABLE outbox IS 'Transactional outbox: one row is one message, delivered at least once and in id order per aggregate';
COMMENT ON COLUMN outbox.id IS 'Delivery order within an aggregate, and the identity a consumer deduplicates by';
COMMENT ON COLUMN outbox.aggregate_type IS 'Kind of aggregate, for example order; routes the message to a queue';
COMMENT ON COLUMN outbox.aggregate_id IS 'Order key and SQS MessageGroupId; unique across aggregate types, for example order-42; 1-128 ASCII letters, digits and punctuation';
COMMENT ON COLUMN outbox.event_type IS 'What happened, for example OrderPlaced';
COMMENT ON COLUMN outbox.payload IS 'Message body; sent as the text PostgreSQL holds';
COMMENT ON COLUMN outbox.headers IS 'Message attributes, one text value a name, for example a trace context';
COMMENT ON COLUMN outbox.created_at IS 'When the producer''s transaction began; the maximum age of a deferral counts from here';
COMMENT ON COLUMN outbox.status IS 'pending -> processing -> done | dead, or back to pending; a dead row gates its aggregate';
COMMENT ON COLUMN outbox.available_at IS 'Not claimed before this time (backoff, deferral, scheduled message)';
COMMENT ON COLUMN outbox.attempts IS 'Claims spent; counted at claim so that a message that kills its worker is counted too; refunded on release and deferral';
COMMENT ON COLUMN outbox.lease_owner IS 'Dispatcher that holds the lease; for people only, correctness rests on lease_version';
COMMENT ON COLUMN outbox.lease_until IS 'After this time another dispatcher may take the row over';
COMMENT ON COLUMN outbox.lease_version IS 'Fencing token: +1 at every claim; a finalize must name the current one';
COMMENT ON COLUMN outbox.parked IS 'A hint for speed: this pending row waits behind an unfinished one and is left out of outbox_ready; never trusted for order';
COMMENT ON COLUMN outbox.last_error IS 'Why the last attempt did not succeed; at most 500 characters; cleared when done';
COMMENT ON COLUMN outbox.done_at IS 'When the row became done; retention counts from here';
COMMENT ON COLUMN outbox.skip_reason IS 'Why a person decided that this message is never sent; NULL unless skipped';
COMMENT ON COLUMN outbox.broker_message_id IS 'The broker''s message id of the accepted send (SQS MessageId)';
COMMENT ON COLUMN outbox.broker_sequence IS 'The broker''s sequence number of the accepted send (SQS SequenceNumber, a decimal number of up to 39 digits)';
COMMENT ON COLUMN outbox.size_bytes IS 'Bytes of payload and headers as text, the form in which they are read and sent';
