# What this project is worked on with; `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help demo test test-otel test-sdk test-agents test-compose test-vllm check-deploy chaos chaos-jobs bench bench-gateway instructions fuzz fmt lint docs schemas sbom audit permissions

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Recorded conversations that the demo plays besides its own, where they are there.
CONVERSATIONS ?= $(wildcard ../shared/data/conversations.jsonl)

demo: ## Play conversations without affinity, with it, and while a worker is killed
	cargo run --locked -- demo --limit 30 $(addprefix --conversations ,examples/conversations $(CONVERSATIONS))

bench: ## Measure what the router costs
	cargo run --locked --release -- bench

# A virtual environment with vllm-router and sglang-router, to be measured in the same run.
PEERS ?=

bench-gateway: ## Measure gateway, router and bridge beside direct HTTP and other routers: make bench-gateway PEERS=venv
	cargo build --locked --release
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" scripts/bench-gateway --rankpin target/release/rankpin $(addprefix --peers ,$(PEERS))

instructions: ## Count the instructions of decisions, keys and requests, and compare them with those on record
	scripts/instructions

test: ## Run all tests, the integration tests against a real NATS server
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" && export RANKPIN_NATS_SERVER && cargo test --locked

test-otel: ## Lint and test the feature otel: traces, as a receiver of OTLP gets them
	cargo clippy --locked --features otel -- --deny warnings
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" && export RANKPIN_NATS_SERVER && cargo test --locked --features otel --test otel

test-sdk: ## Run the official Python client libraries (openai, anthropic, litellm) against a gateway
	cargo build --locked
	scripts/test-sdk

test-agents: ## Run coding agents from npm (Codex, OpenCode, Claude Code) against a gateway
	cargo build --locked
	scripts/test-agents

# A directory with vLLM installed in venv/ and a model that it serves in model/.
VLLM ?=

test-vllm: ## Test against a real vLLM of two ranks: make test-vllm VLLM=dir
	@test -x "$(VLLM)/venv/bin/vllm" -a -d "$(VLLM)/model" || \
		{ echo "VLLM=dir: a directory with vLLM installed in venv/, and a small model in model/" >&2; exit 1; }
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" RANKPIN_VLLM="$(abspath $(VLLM))" \
		cargo test --locked --test it -- vllm:: --ignored --nocapture

test-compose: ## Run docker-compose.yml with real containers, and break things in it
	scripts/test-compose

check-deploy: ## Check the Dockerfile and what is under deploy/, without an engine or a cluster
	scripts/check-deploy

# Seconds and seed; jobs, faults and seed.
CHAOS ?= 1800 1
CHAOS_JOBS ?= 10000 20 1

chaos: ## Break a cluster under load in every way: make chaos CHAOS="1800 3"
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" RANKPIN_CHAOS="$(CHAOS)" cargo test --locked --test it -- chaos::run --nocapture

chaos-jobs: ## Kill, freeze and restart what runs durable jobs: make chaos-jobs CHAOS_JOBS="10000 20 3"
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" RANKPIN_CHAOS_JOBS="$(CHAOS_JOBS)" cargo test --locked --test it -- jobs::chaos --nocapture

TARGET ?= json_body
SECONDS ?= 300

fuzz: ## Fuzz one target for a while: make fuzz TARGET=packed_body SECONDS=300
	mkdir -p fuzz/corpus/$(TARGET)
	cargo fuzz run --sanitizer none $(TARGET) fuzz/corpus/$(TARGET) fuzz/seeds/$(TARGET) -- -max_total_time=$(SECONDS)

fmt: ## Format the sources
	cargo fmt

lint: ## Check format and lints as CI does
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings

docs: ## Build the API documentation; a broken link is an error
	RUSTDOCFLAGS="--deny warnings" cargo doc --locked --no-deps --document-private-items

sbom: ## Write what a build is made of to sbom.json (CycloneDX)
	scripts/sbom > sbom.json

audit: ## Check licences and sources of all crates against deny.toml
	scripts/sbom --check

permissions: ## Write deploy/nats/rankpin.conf, the example of nats-permissions
	cargo run --locked --quiet -- nats-permissions --gateway gateway --batch batch --out deploy/nats

schemas: ## Write the JSON Schemas under schemas/ from the types
	cargo run --locked --quiet -- schema --out schemas
