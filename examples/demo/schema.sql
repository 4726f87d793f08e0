-- The business side of the demo: what a shop would have anyway. The outbox itself comes from `outbox migrate`.
CREATE TABLE orders (
    id           bigint PRIMARY KEY,
    step         integer NOT NULL DEFAULT 0, -- events so far
    state        text    NOT NULL DEFAULT 'Cart',
    amount_cents bigint  NOT NULL
);
CREATE TABLE merchant_ledger (
    merchant      text   PRIMARY KEY,
    entries       bigint NOT NULL DEFAULT 0,
    balance_cents bigint NOT NULL DEFAULT 0
);
INSERT INTO merchant_ledger (merchant) VALUES ('merchant-1');
