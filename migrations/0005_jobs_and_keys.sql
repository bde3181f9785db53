-- A job exists because a row here says so: written in the transaction that causes the work,
-- deleted in the transaction of the job's own effect.
CREATE TABLE outbox (
    event_id   uuid        NOT NULL,
    id         uuid        NOT NULL,
    queue      text        NOT NULL,
    kind       text        NOT NULL,
    payload    jsonb       NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT outbox_pkey PRIMARY KEY (event_id, id)
);

-- API keys are shown once and kept as SHA-256 of the whole key.
CREATE TABLE api_keys (
    id         uuid        NOT NULL,
    name       text        NOT NULL,
    scope      text        NOT NULL,
    hash       bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_hash_key UNIQUE (hash),
    CONSTRAINT api_keys_scope_known CHECK (scope IN ('admin', 'sales', 'ops')),
    CONSTRAINT api_keys_name_length CHECK (char_length(name) BETWEEN 1 AND 200)
);

-- What belongs to this installation as a whole: the secret that signs anonymous buyers, the Redis layout in use.
CREATE TABLE installation (
    name  text NOT NULL,
    value text NOT NULL,
    CONSTRAINT installation_pkey PRIMARY KEY (name)
);
