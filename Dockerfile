# syntax=docker/dockerfile:1
# The one binary of api, worker and tools: `docker run holdfast api …`, `docker run holdfast worker …`.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# The queries' checks are read from .sqlx: a build needs no database.
ENV SQLX_OFFLINE=true CARGO_TERM_PROGRESS_WHEN=never
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package holdfast --bin holdfast \
    && install -D target/release/holdfast /out/holdfast

FROM debian:bookworm-slim AS runtime
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin holdfast
# Asks a listener's /livez without curl, which the image has no other use for.
COPY --chmod=755 <<"EOF" /usr/local/bin/holdfast-alive
#!/bin/bash
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
printf 'GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r _ status _ <&3
[[ $status == 200 ]]
EOF
COPY --from=build /out/holdfast /usr/local/bin/holdfast
USER 10001:10001
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["holdfast"]
CMD ["--help"]
