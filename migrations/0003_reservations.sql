-- "Now" in SQL: the database's clock, moved only by tests (offset in ms, 0 in production).
CREATE FUNCTION hf_now(offset_ms bigint) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN date_trunc('milliseconds', now()) + offset_ms * interval '1 millisecond';

-- The truth about ownership (I1): one row owns one seat of one event; a seat without a row is available.
-- committed = paid for, being captured: it cannot expire, and is shown as held.
CREATE TABLE seat_claims (
    event_id       uuid        NOT NULL,
    seat_id        bigint      NOT NULL,
    reservation_id uuid,
    state          text        NOT NULL,
    expires_at     timestamptz,
    generation     integer     NOT NULL DEFAULT 1,
    CONSTRAINT seat_claims_pkey PRIMARY KEY (event_id, seat_id),
    CONSTRAINT seat_claims_state_known CHECK (state IN ('held', 'committed', 'sold', 'blocked')),
    CONSTRAINT seat_claims_held_expires CHECK ((state = 'held') = (expires_at IS NOT NULL)),
    CONSTRAINT seat_claims_owner CHECK ((state = 'blocked') = (reservation_id IS NULL))
);

-- committed_at: its seats are committed to a payment that is being captured; until then the deadline counts.
CREATE TABLE reservations (
    event_id          uuid        NOT NULL,
    id                uuid        NOT NULL,
    buyer             text        NOT NULL,
    status            text        NOT NULL,
    cancel_reason     text,
    amount            bigint      NOT NULL,
    currency          text        NOT NULL,
    seat_count        integer     NOT NULL,
    created_at        timestamptz NOT NULL,
    expires_at        timestamptz NOT NULL,
    extends_until     timestamptz NOT NULL,
    extensions        integer     NOT NULL DEFAULT 0,
    payment_stretched boolean     NOT NULL DEFAULT false,
    committed_at      timestamptz,
    ended_at          timestamptz,
    generation        integer     NOT NULL DEFAULT 1,
    CONSTRAINT reservations_pkey PRIMARY KEY (event_id, id),
    CONSTRAINT reservations_status_known CHECK (status IN ('PENDING', 'CONFIRMED', 'CANCELLED')),
    CONSTRAINT reservations_reason_known CHECK (cancel_reason IN ('expired', 'user', 'operator', 'payment_failed', 'event_cancelled')),
    CONSTRAINT reservations_reason_given CHECK ((status = 'CANCELLED') = (cancel_reason IS NOT NULL)),
    CONSTRAINT reservations_ended CHECK ((status = 'PENDING') = (ended_at IS NULL)),
    CONSTRAINT reservations_amount_range CHECK (amount >= 0)
);
CREATE INDEX reservations_id_idx ON reservations (id);
CREATE INDEX reservations_buyer_idx ON reservations (buyer, id);

-- Kept for ever, the price frozen.
CREATE TABLE reservation_seats (
    event_id       uuid   NOT NULL,
    reservation_id uuid   NOT NULL,
    seat_id        bigint NOT NULL,
    price          bigint NOT NULL,
    CONSTRAINT reservation_seats_pkey PRIMARY KEY (event_id, reservation_id, seat_id)
);

-- Append-only. sequence orders an event's changes; before and after are seat states, available where no claim stands.
CREATE TABLE seat_log (
    event_id       uuid        NOT NULL,
    sequence       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    seat_id        bigint      NOT NULL,
    reservation_id uuid,
    actor          text        NOT NULL,
    reason         text        NOT NULL,
    before         text        NOT NULL,
    after          text        NOT NULL,
    at             timestamptz NOT NULL,
    CONSTRAINT seat_log_pkey PRIMARY KEY (event_id, sequence)
);

-- Written in the transaction of the effect; the body is the first answer, byte for byte.
CREATE TABLE idempotency_keys (
    caller      text        NOT NULL,
    key         text        NOT NULL,
    fingerprint text        NOT NULL,
    status      smallint    NOT NULL,
    body        text        NOT NULL,
    event_id    uuid,
    resource_id uuid,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (caller, key),
    CONSTRAINT idempotency_keys_key_length CHECK (char_length(key) BETWEEN 1 AND 255)
);
CREATE INDEX idempotency_keys_created_at_idx ON idempotency_keys USING brin (created_at);
