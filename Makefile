# What this project is worked on with; `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help demo test bench fmt lint docs schemas

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Recorded conversations beside the repository are played too.
CONVERSATIONS ?= $(wildcard ../shared/data/conversations.jsonl)
ifneq ($(CONVERSATIONS),)
PLAYED = --conversations examples/conversations --conversations $(CONVERSATIONS) --limit 30
endif

demo: ## Watch sessions hop, hold, and survive a killed worker; conversations of your own with CONVERSATIONS=FILE
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" && export RANKPIN_NATS_SERVER && \
		cargo run --locked --quiet -- demo $(PLAYED)

bench: ## Measure what a router costs, against a null forwarder and against no router
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" && export RANKPIN_NATS_SERVER && \
		cargo run --locked --quiet --release -- bench

test: ## Run all tests, the integration tests against a real NATS server
	RANKPIN_NATS_SERVER="$$(scripts/nats-server)" && export RANKPIN_NATS_SERVER && cargo test --locked

fmt: ## Format the sources
	cargo fmt

lint: ## Check format and lints as CI does
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings

docs: ## Build the API documentation; a broken link is an error
	RUSTDOCFLAGS="--deny warnings" cargo doc --locked --no-deps --document-private-items

schemas: ## Write the JSON Schemas under schemas/ from the types
	cargo run --locked --quiet -- schema --out schemas
