# The image of rankpin: one binary, which is router, worker and frontend tools by its first argument.
#
#   docker build --tag rankpin .                                                          from source
#   docker build --tag rankpin --target prebuilt --file Dockerfile target/release        from a binary that is there
#
# The second takes the file rankpin in the directory given, built on a system whose libc is not newer than that of the
# base below.

# What every image stands on. No shell script, package manager or further package is needed at run time.
FROM debian:bookworm-slim AS base
LABEL org.opencontainers.image.title="rankpin" \
      org.opencontainers.image.description="Pins LLM conversations to a worker and data-parallel rank over NATS" \
      org.opencontainers.image.licenses="Apache-2.0"
# Nobody in particular, by number: Kubernetes can see that it is not root.
USER 65532:65532
# A router drains on SIGTERM: it leaves the queue group, ends what it has, and exits 0.
STOPSIGNAL SIGTERM
EXPOSE 9464
# Of a router. What serves its health elsewhere, or not at all, is started with a check of its own, or without one.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["/usr/local/bin/rankpin", "health"]
ENTRYPOINT ["/usr/local/bin/rankpin"]
CMD ["router", "--listen", "0.0.0.0:9464"]

# From a binary that is there. It stands before the stages that compile, because builders without BuildKit build every
# stage before the one that is wanted.
FROM base AS prebuilt
COPY rankpin /usr/local/bin/rankpin

# From source.
FROM rust:1-bookworm AS build
WORKDIR /src
# Cargo features, with commas between: otel for traces.
ARG FEATURES=
# Dependencies first, by an empty crate of the same name: they are compiled anew only when the lock file changes. Cargo wants
# to see every target that Cargo.toml names, and compiles none but the binary.
COPY Cargo.toml Cargo.lock ./
COPY benches benches
RUN mkdir -p src \
    && touch src/lib.rs \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked --bin rankpin --features "$FEATURES" \
    && rm -rf src
COPY src src
COPY examples examples
# What was copied may be older than what the empty crate has left, and would be taken for built.
RUN touch src/lib.rs src/main.rs \
    && cargo build --release --locked --bin rankpin --features "$FEATURES" \
    && strip --strip-debug target/release/rankpin

FROM base AS rankpin
# Authorities for nats:// over TLS; the slim base has none.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/target/release/rankpin /usr/local/bin/rankpin
