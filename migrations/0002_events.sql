-- Events. Wall-clock rules are kept beside the instant they resolve to in the venue's zone.
-- revision changes with every change that a hold must notice: a hold made with an older one is repeated.
CREATE TABLE events (
    id                        uuid        NOT NULL,
    venue_id                  uuid        NOT NULL,
    title                     text        NOT NULL,
    date_key                  text        NOT NULL,
    starts_at                 timestamptz NOT NULL,
    starts_local              text        NOT NULL,
    sales_open_at             timestamptz,
    sales_open_local          text,
    sales_close_at            timestamptz,
    sales_close_local         text,
    currency                  text        NOT NULL,
    hold_ttl_ms               bigint      NOT NULL,
    payment_window_ms         bigint      NOT NULL,
    extensions_max            integer     NOT NULL,
    seats_per_reservation_max integer     NOT NULL,
    seats_per_buyer_max       integer,
    status                    text        NOT NULL,
    revision                  integer     NOT NULL DEFAULT 1,
    blocks_prepared           integer     NOT NULL DEFAULT 0,
    created_at                timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT events_pkey PRIMARY KEY (id),
    CONSTRAINT events_date_key_key UNIQUE (date_key),
    CONSTRAINT events_venue_fkey FOREIGN KEY (venue_id) REFERENCES venues (id),
    CONSTRAINT events_status_known CHECK (status IN ('draft', 'preparing', 'on_sale', 'closed', 'cancelled')),
    CONSTRAINT events_sales_window CHECK (sales_open_at < sales_close_at),
    CONSTRAINT events_hold_ttl_range CHECK (hold_ttl_ms BETWEEN 1000 AND 86400000),
    CONSTRAINT events_payment_window_range CHECK (payment_window_ms BETWEEN 1000 AND 86400000)
);
CREATE INDEX events_starts_at_idx ON events (starts_at, id);

CREATE TABLE prices (
    event_id uuid   NOT NULL,
    category text   NOT NULL,
    amount   bigint NOT NULL,
    CONSTRAINT prices_pkey PRIMARY KEY (event_id, category),
    CONSTRAINT prices_event_fkey FOREIGN KEY (event_id) REFERENCES events (id) ON DELETE CASCADE,
    CONSTRAINT prices_amount_range CHECK (amount BETWEEN 0 AND 1000000000000)
);
