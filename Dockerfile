# The program in a small image. `docker compose up --build` starts a fleet of it.
FROM rust:1-slim-bookworm AS build
WORKDIR /artel
COPY . .
RUN cargo build --locked --release --bin artel

FROM debian:bookworm-slim
# The authorities that `rediss://` trusts.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates \
  && rm -rf /var/lib/apt/lists/* && useradd --system --uid 10001 artel
COPY --from=build /artel/target/release/artel /usr/local/bin/artel
USER artel
# A container says where its Redis is; a private server of its own would be lost with it.
ENV ARTEL_EMBEDDED=never
EXPOSE 8090
ENTRYPOINT ["artel"]
CMD ["run"]
