-- One attempt to take money. The payment's id is the key under which the provider is asked, always.
CREATE TABLE payments (
    event_id           uuid        NOT NULL,
    id                 uuid        NOT NULL,
    reservation_id     uuid        NOT NULL,
    provider           text        NOT NULL,
    token              text,
    return_url         text,
    status             text        NOT NULL,
    amount             bigint      NOT NULL,
    refunded_amount    bigint      NOT NULL DEFAULT 0,
    currency           text        NOT NULL,
    provider_reference text,
    failure            text,
    deadline           timestamptz NOT NULL,
    created_at         timestamptz NOT NULL,
    updated_at         timestamptz NOT NULL,
    CONSTRAINT payments_pkey PRIMARY KEY (event_id, id),
    CONSTRAINT payments_status_known CHECK (status IN
        ('requested', 'authorized', 'capturing', 'captured', 'declined', 'voided', 'refunded', 'partly_refunded', 'needs_review')),
    CONSTRAINT payments_amount_range CHECK (amount >= 0),
    CONSTRAINT payments_refunded_range CHECK (refunded_amount BETWEEN 0 AND amount)
);
CREATE INDEX payments_id_idx ON payments (id);
CREATE INDEX payments_reservation_idx ON payments (event_id, reservation_id);
-- At most one payment that may still take money, or has kept it, for each reservation.
CREATE UNIQUE INDEX payments_open_key ON payments (event_id, reservation_id)
    WHERE status IN ('requested', 'authorized', 'capturing', 'captured', 'partly_refunded', 'needs_review');

-- One attempt to give money back. The row and its key (its id) exist before the provider is called.
CREATE TABLE refunds (
    event_id       uuid        NOT NULL,
    id             uuid        NOT NULL,
    reservation_id uuid        NOT NULL,
    payment_id     uuid        NOT NULL,
    amount         bigint      NOT NULL,
    currency       text        NOT NULL,
    reason         text        NOT NULL,
    status         text        NOT NULL,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    CONSTRAINT refunds_pkey PRIMARY KEY (event_id, id),
    CONSTRAINT refunds_status_known CHECK (status IN ('requested', 'done', 'failed')),
    CONSTRAINT refunds_amount_range CHECK (amount > 0)
);
CREATE INDEX refunds_reservation_idx ON refunds (event_id, reservation_id);
-- Money that came too late goes back once, automatically.
CREATE UNIQUE INDEX refunds_late_key ON refunds (event_id, payment_id) WHERE reason = 'late_payment';

-- What the fake provider would keep at its own place: it outlives workers, as a real one does.
CREATE TABLE fake_provider_ledger (
    key        text        NOT NULL,
    token      text        NOT NULL,
    amount     bigint      NOT NULL,
    currency   text        NOT NULL,
    status     text        NOT NULL,
    refunded   bigint      NOT NULL DEFAULT 0,
    captures   integer     NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT fake_provider_ledger_pkey PRIMARY KEY (key),
    CONSTRAINT fake_provider_ledger_status_known CHECK (status IN ('pending', 'authorized', 'captured', 'declined', 'voided')),
    CONSTRAINT fake_provider_ledger_refunded_range CHECK (refunded BETWEEN 0 AND amount)
);
CREATE TABLE fake_provider_refunds (
    key         text   NOT NULL,
    payment_key text   NOT NULL,
    amount      bigint NOT NULL,
    CONSTRAINT fake_provider_refunds_pkey PRIMARY KEY (key)
);
