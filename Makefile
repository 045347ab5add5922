# Each target is a line or two; the work is in Python (hack/, benchmarks/). `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
CLUSTER ?= own
DOCS ?= build/docs
export CLUSTER
BIN := .venv/bin

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

setup: .venv/.done ## .venv with everything for development (one torch included: about 3 GB to download)

.venv/.done: constraints.txt pyproject.toml api/pyproject.toml client/pyproject.toml operator/pyproject.toml trainer-runtime/pyproject.toml
	@echo "setup: making .venv (takes 1-2 minutes: torch is large)"
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q -c constraints.txt pip
	$(BIN)/python -m pip install -q -c constraints.txt -e ./trainer-runtime -e ./api -e ./operator -e ./client --group dev --group docs --group release --group torch
	@touch $@

quickstart: setup ## no cluster, no root, a minute: agents on this machine lose a worker process and gain a member
	$(BIN)/python -m hack.quickstart
demo: setup ## a session on a real cluster: a pod is deleted mid-training; no other process restarts, no step is lost
	$(BIN)/python -m hack.demo run
demo-down: setup ## take down what `make demo` brought up
	$(BIN)/python -m hack.demo down
install: setup ## images and chart on the running cluster
	$(BIN)/python -m hack.demo install
cluster: setup ## the test cluster: a real Kubernetes without Docker (root; kubeconfig in .cluster)
	$(BIN)/python -m hack.cluster up
kueue: setup ## stock Kueue on the test cluster that is up (once 4 minutes, to build it)
	$(BIN)/python -m hack.cluster kueue
cluster-down: setup ## take down the test cluster
	$(BIN)/python -m hack.cluster down
images: setup ## operator, runtime and trainer images
	$(BIN)/python -m hack.images build

docs: setup ## the docs site, in site/ (fails on dead links and on pages outside the navigation)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
docs-publish: docs ## add the site of this version to build/docs, which keeps those of other versions (DOCS=FOLDER)
	$(BIN)/python -m hack.site $(DOCS)
docs-serve: setup ## the docs site on http://127.0.0.1:8000, rebuilt while you write
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --no-strict

release: setup ## dist/: wheels, sdists, chart, install.yaml, images, SBOMs, checksums (ARGS=--registry=ghcr.io/example)
	$(BIN)/python -m hack.release build $(ARGS)

test: setup ## the tests that prove every promise (without root: all but end-to-end)
	$(BIN)/python -m hack.run_tests
nightly: setup ## every test, with those that take minutes to prove again what others prove
	$(BIN)/python -m hack.run_tests --nightly
quick: setup ## in a minute: format, lint, types and unit tests of what differs from main
	@$(BIN)/python -m hack.quick
test-unit: setup ## the fast tests only
	$(BIN)/python -m pytest -q -n 2 -m 'not nightly' tests/unit
check-gpu: setup ## the tests that need GPUs, up to eight (all others skip them; SHARED_GPU=1: one is enough)
	$(BIN)/python -c "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'check-gpu: torch sees no GPU here')"
	$(BIN)/python -m pytest -q -rs -m gpu tests/unit tests/contract tests/integration
check-torch: setup ## the tests that depend on torch, with another version of it (VERSION=2.9; downloads 3 GB)
	$(BIN)/python -m hack.torch_versions $(VERSION)
chaos: setup ## faults on real pods, with a ledger of everything trained and saved (root; about 40 minutes; ARGS=--nightly: hours)
	$(BIN)/python -m hack.chaos $(ARGS)

bench-recovery: setup ## what each change costs where processes restart and in place, next to torchrun and torchft (ARGS=--save)
	$(BIN)/python -m benchmarks.recovery $(ARGS)
random-run: setup ## a training in place with random faults must be the undisturbed one (ARGS="--seconds 1800 --seed 1")
	$(BIN)/python -m tests.integration.runtime_session.random_run $(ARGS)
checkpoint-trials: setup ## kills and I/O errors in the midst of saves and loads lose no checkpoint (ARGS="--seconds 1800 --seed 1")
	$(BIN)/python -m tests.unit.runtime.training.checkpoint.trials $(ARGS)
bench-rendezvous: setup ## 4 to 1,000 agents meet on one etcd, and lose one
	$(BIN)/python -m benchmarks.rendezvous $(ARGS)
bench-operator: setup ## a large job, a thousand idle ones, a storm of failures
	$(BIN)/python -m benchmarks.operator $(ARGS)
bench-fleet: setup ## a fleet of jobs that train: start, rest, nodes and operator lost, at several sizes (ARGS="--size 40,80")
	$(BIN)/python -m benchmarks.operator fleet $(ARGS)

check: setup ## format, lint, types, layers, words, docs, generated files, workflows, chart
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check-types check-rest
check-types: setup
	$(BIN)/mypy && $(BIN)/mypy examples/tensor-parallel/train.py && $(BIN)/mypy --python-version 3.10 trainer-runtime/src
check-rest: setup
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	PYTHONPATH=api/src:client/src:operator/src:trainer-runtime/src $(BIN)/lint-imports
	$(BIN)/python -m elasticjob_api.crd.generate --check
	$(BIN)/python -m hack.checks
	$(MAKE) --no-print-directory docs
	$(BIN)/python -m hack.release version
	go -C hack/checks tool actionlint -shellcheck= -pyflakes= $(CURDIR)/.github/workflows/*.yaml
	$(BIN)/python -m hack.cluster helm lint --strict --kube-version 1.36 charts/elasticjob
generate: setup ## generate CRD and chart files from the models, and the reference in the docs
	$(BIN)/python -m elasticjob_api.crd.generate
	$(BIN)/python -m hack.reference
requirements: setup ## hashes of what the operator's image and a release install, from constraints.txt and the package index
	$(BIN)/python -m hack.requirements

.PHONY: help setup requirements docs docs-publish docs-serve release quickstart demo demo-down install cluster kueue cluster-down images test nightly quick test-unit check-gpu check-torch chaos bench-recovery random-run checkpoint-trials bench-rendezvous bench-operator bench-fleet check check-types check-rest generate
