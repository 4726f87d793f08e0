# `make help` lists the targets. Each one does its own set-up: nothing has to be started by hand.
.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
WITH_SERVICES := . localstack/env &&
SCRIPTS := .ci/prepare .ci/run localstack/down localstack/up localstack/ready.d/10-queues.sh

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: up
up: ## Start PostgreSQL 18 and LocalStack (idempotent)
	@localstack/up

.PHONY: down
down: ## Stop what `make up` started and remove its data
	@localstack/down

.PHONY: demo
demo: up ## 12,000 messages, 3 dispatchers, one killed, one gate: watch order hold
	@cargo build --bin outbox --example demo
	@$(WITH_SERVICES) cargo run --quiet --example demo

.PHONY: test
test: ## Run every test on PostgreSQL 15 and 18 and LocalStack
	@localstack/up --with-postgres15 || { [ -z "$$CI" ] && localstack/up; }
	@$(WITH_SERVICES) cargo test --no-fail-fast
	@$(WITH_SERVICES) if [ -z "$$DATABASE_URL_PG15" ]; then echo "NOT TESTED on PostgreSQL 15: it is not on this machine"; fi

.PHONY: bench
bench: up ## Measure everything; QUICK=1: smaller tables, in under 5 minutes
	@rm -rf target/bench
	@$(WITH_SERVICES) export QUICK=$(QUICK) && { \
		cargo bench --no-fail-fast $(addprefix --bench ,claim dispatch hot_aggregate latency memory baseline); measured=$$?; \
		cargo bench --bench report && exit $$measured; }

.PHONY: lint
lint: ## rustfmt, clippy, rustdoc (warnings are errors), and shellcheck if it is installed
	@cargo fmt --check
	@cargo clippy --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SCRIPTS); fi

# The checked queries are compiled against a database of their own that is migrated first.
.PHONY: prepare
prepare: up ## Renew .sqlx/ after a change of src/store/sql or migrations
	@$(WITH_SERVICES) .ci/prepare
