-- Venues: fixed places. A venue's map is immutable once an event uses it.
CREATE TABLE venues (
    id           uuid        NOT NULL,
    name         text        NOT NULL,
    time_zone    text        NOT NULL,
    version      integer     NOT NULL DEFAULT 1,
    content_hash text        NOT NULL,
    block_count  integer     NOT NULL,
    seat_count   integer     NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT venues_pkey PRIMARY KEY (id),
    CONSTRAINT venues_name_key UNIQUE (name),
    CONSTRAINT venues_name_length CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT venues_seat_count_range CHECK (seat_count BETWEEN 1 AND 200000)
);

CREATE TABLE categories (
    venue_id uuid    NOT NULL,
    category text    NOT NULL,
    ordinal  integer NOT NULL,
    color    text,
    CONSTRAINT categories_pkey PRIMARY KEY (venue_id, category),
    CONSTRAINT categories_venue_fkey FOREIGN KEY (venue_id) REFERENCES venues (id) ON DELETE CASCADE
);

CREATE TABLE blocks (
    id       bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    venue_id uuid    NOT NULL,
    block    text    NOT NULL,
    ordinal  integer NOT NULL,
    names    jsonb   NOT NULL DEFAULT '{}',
    tier     text,
    CONSTRAINT blocks_pkey PRIMARY KEY (id),
    CONSTRAINT blocks_venue_block_key UNIQUE (venue_id, block),
    CONSTRAINT blocks_venue_fkey FOREIGN KEY (venue_id) REFERENCES venues (id) ON DELETE CASCADE
);

-- neighbours are ordinals in the same block: explicit, never arithmetic on labels.
CREATE TABLE seats (
    id           bigint           NOT NULL GENERATED ALWAYS AS IDENTITY,
    venue_id     uuid             NOT NULL,
    block_id     bigint           NOT NULL,
    ordinal      integer          NOT NULL,
    row_label    text             NOT NULL,
    column_label text             NOT NULL,
    label        text             NOT NULL,
    category     text             NOT NULL,
    x            double precision NOT NULL,
    y            double precision NOT NULL,
    neighbours   integer[]        NOT NULL DEFAULT '{}',
    CONSTRAINT seats_pkey PRIMARY KEY (id),
    CONSTRAINT seats_place_key UNIQUE (block_id, row_label, column_label),
    CONSTRAINT seats_block_fkey FOREIGN KEY (block_id) REFERENCES blocks (id) ON DELETE CASCADE,
    CONSTRAINT seats_category_fkey FOREIGN KEY (venue_id, category) REFERENCES categories (venue_id, category)
);
CREATE INDEX seats_venue_idx ON seats (venue_id);
