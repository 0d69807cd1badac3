# `make help` lists what there is. Everything runs from a clean clone with a Rust toolchain.

CARGO ?= cargo

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: ## Move a KV cache between two processes, pushed and pulled, use a pool, and show how fast.
	$(CARGO) run --quiet --release --locked -p kvbench -- quickstart

.PHONY: test
test: ## Run every test that needs no root, no network and no other program.
	$(CARGO) test --locked --workspace

.PHONY: simulate
simulate: ## Run whole engines in virtual time (KVFERRY_SEED=n repeats one run).
	$(CARGO) test --locked -p kvferry-tests --test sim engines -- --nocapture

.PHONY: soak
soak: ## Simulate with fresh seeds for a while (SECONDS=n, default 600).
	KVFERRY_SOAK_SECONDS=$(or $(SECONDS),600) $(MAKE) simulate

.PHONY: loom
loom: ## Try what threads share under every interleaving (loom), in a few seconds once built.
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/loom" \
		$(CARGO) test --locked --release -p kvferry-loom

.PHONY: fuzz
fuzz: ## Fuzz every parser (SECONDS=n for each, default 60); needs nightly Rust and cargo-fuzz.
	SECONDS_EACH=$(or $(SECONDS),60) fuzz/run

.PHONY: test-rdma
test-rdma: ## Run what needs RDMA adapters in a virtual machine that has some (SETUP=1 installs qemu).
	tests/rdma/run

.PHONY: test-abi
test-abi: ## Compare our view of libibverbs with its header (SETUP=1 installs cmake and clang).
	tests/abi/run

.PHONY: wheel
wheel: ## Build the Python wheel, with the commands in it, for every Linux from glibc 2.28 on.
	python/build

.PHONY: test-python
test-python: ## Install the wheel into an environment of its own and test it (SETUP=1 installs what that needs).
	python/test

.PHONY: test-vllm
test-vllm: ## Run real vLLM servers and the real router over kvferry (SETUP=1 installs them into target/vllm).
	tests/vllm/run

.PHONY: test-all
test-all: test loom test-python test-abi test-rdma test-vllm ## Run every test, those that need set-up included (SETUP=1 does it).

.PHONY: lint
lint: ## Check formatting, clippy, documentation, licences and sources.
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) fmt --manifest-path tests/abi/Cargo.toml --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	.ci/deny
	.ci/python

.PHONY: bench
bench: ## Compare transfers with raw sockets on this machine; writes figures and pictures to out/.
	mkdir -p out
	$(CARGO) run --quiet --release --locked -p kvbench -- transfer --transport tcp --floor \
		--block-size 4KiB,64KiB,1MiB,4MiB --total 64MiB,256MiB \
		--json out/transfer.json --csv out/transfer.csv --plot out/transfer.svg
	$(CARGO) run --quiet --release --locked -p kvbench -- transfer --transport tcp --floor \
		--pace hot,cold --block-size 4KiB --json out/latency.json
	$(CARGO) run --quiet --release --locked -p kvbench -- mixed --transport tcp --json out/mixed.json

.PHONY: micro
micro: ## Time planning, encoding and decoding (criterion).
	$(CARGO) bench --locked -p kvbench

.PHONY: instructions
instructions: ## Count what a descriptor costs in instructions, and compare (callgrind).
	.ci/instructions

.PHONY: bench-peers
bench-peers: ## Compare with the published wheels of Mooncake and NIXL, pools too; writes out/peers*.json, out/peers.svg.
	benches/peers/setup.sh
	$(CARGO) build --quiet --release --locked -p kvbench
	python3 benches/peers/compare.py --kind tcp local foreign --kvbench "$${CARGO_TARGET_DIR:-target}/release/kvbench" --json out/peers.json
	"$${CARGO_TARGET_DIR:-target}/release/kvbench" plot out/peers.json --output out/peers.svg
	python3 benches/peers/pool.py --kvbench "$${CARGO_TARGET_DIR:-target}/release/kvbench" --json out/peers-pool.json

.PHONY: bench-rdma
bench-rdma: ## Compare transfers over RDMA with perftest in a virtual machine; writes out/rdma.json (SETUP=1 installs qemu).
	mkdir -p out
	benches/rdma/run out/rdma.json

.PHONY: bench-vllm
bench-vllm: ## Compare vLLM over kvferry with vLLM's own connectors; writes out/vllm.json (SETUP=1 installs vLLM).
	benches/vllm/run --json out/vllm.json
