# capstan. `make help` lists the targets. Every target does its own set-up.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X main.release=$(VERSION) -X main.commit=$(COMMIT)
TOOL    := go tool -modfile=tools/go.mod

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/capstan
	@go build -trimpath -ldflags '$(LDFLAGS)' -o bin/capstan ./cmd/capstan

.PHONY: mongod
mongod: ## find or install a mongod and print its path
	@scripts/get-mongod

.PHONY: demo
demo: build ## 100,000 messages through a replica set whose primaries are killed and frozen meanwhile (2 minutes)
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan demo $(ARGS)

.PHONY: demo-replicate
demo-replicate: build ## two replica sets and a filtered live route; capstan and a primary are killed, then both sides are compared (2 minutes)
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan demo replicate $(ARGS)

.PHONY: test
test: ## run every test on real servers (ARGS='-run X' to choose, PKG=./tailer/ for one package)
	@scripts/test $(ARGS)

.PHONY: lint
lint: ## gofmt, vet and the pinned linters
	@scripts/lint

.PHONY: bench
bench: build ## the speed and memory figures as ratios in one run; writes results/core
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan bench core --out results/core $(ARGS)

.PHONY: bench-latency
bench-latency: build ## how long messages take from write to read, in fifteen ways (10 minutes); writes results/latency
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan bench latency --compress --out results/latency $(ARGS)

.PHONY: bench-latency-quick
bench-latency-quick: build ## the same with 10,000 messages each (2 minutes); writes latency-out
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan bench latency --count 10000 --out latency-out $(ARGS)

.PHONY: bench-failover
bench-failover: build ## every fault with both profiles, and the controls (half an hour; root, for networks that can be cut); writes results/failover
	@scripts/bench-failover --out results/failover $(ARGS)

.PHONY: bench-failover-quick
bench-failover-quick: build ## two trials of every fault, and one of the main ones with the default profile (7 minutes; root); exits with 1 if anything is lost or doubled; writes failover-out
	@scripts/bench-failover --trials 2 --profile fast --out failover-out $(ARGS)
	@scripts/bench-failover --trials 1 --profile default --lanes 4 --fault kill,stepdown,freeze,blackhole,link-down --out failover-out/default $(ARGS)

.PHONY: bench-replicate
bench-replicate: build ## copy, live changes, lag and verify against naive programs (twenty minutes); writes results/replicate
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan bench replicate --out results/replicate $(ARGS)

.PHONY: bench-replicate-quick
bench-replicate-quick: build ## the same, much smaller (2 minutes); writes replicate-out
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan bench replicate --quick --out replicate-out $(ARGS)

.PHONY: bench-replicate-seeds
bench-replicate-seeds: build ## 300 random runs with faults; both sides must be equal after each (an hour); writes results/replicate
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && exec bin/capstan bench replicate --seeds 300 --lanes 2 --length 2500ms --operations 800 --documents 1500 --out results/replicate $(ARGS)

.PHONY: bench-e2e
bench-e2e: ## the end-to-end tests at full size, 200,000 events and fifteen kills among them; writes results/e2e
	@scripts/bench-e2e

.PHONY: bench-exactly-once
bench-exactly-once: ## of these only the 200,000 events, stored exactly once across fifteen kills
	@CAPSTAN_MONGOD="$$(scripts/get-mongod)" && export CAPSTAN_MONGOD && \
		CAPSTAN_E2E_FULL=1 go test -count=1 -timeout 45m -v -run 'ExactlyOnce' ./e2e

.PHONY: clean
clean: ## remove what the other targets made
	@rm -rf bin demo-out latency-out failover-out replicate-out
