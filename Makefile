# Targets for developers and continuous integration. `make` lists them. None of them needs root, a
# GPU or the network, except to download modules and tools.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
# No C in the programs and their tests, except for the race detector. So a package is compiled
# once for all targets.
export CGO_ENABLED := 0
# Engines take three times as long to start if Python may not cache its bytecode.
unexport PYTHONDONTWRITEBYTECODE
GOBUILD := go build -ldflags '$(LDFLAGS)'
# Without NVIDIA's driver, which is loaded at run time and needs glibc.
STATIC  := -tags nocuda

TESTFLAGS ?=
# Packages tested at once, two per processor: half of them mostly wait for clients, disks and
# clocks.
PACKAGES  ?= $(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2))))
# Processes that pytest starts, one per processor.
PYTESTFLAGS ?= -n auto --maxprocesses 4 --dist loadfile
# Of tests/engine: its conftest.py chooses the number of processes and the order of modules.
ENGINEFLAGS ?= $(PYTESTFLAGS) --no-loadscope-reorder
FUZZTIME  ?= 30s
BENCHTIME ?= 1s
IMAGE     ?= localhost/spliced:dev
# The image with CUDA, and its base: glibc and nothing else.
CUDAIMAGE ?= localhost/spliced:dev-cuda
CUDABASE  ?= gcr.io/distroless/base-nossl-debian12:nonroot
# For bench-network: transfers of each kind, alternately.
ROUNDS    ?= 30
# Directory of bench-disk's files, which it removes; empty = the directory of temporary files.
DISKDIR   ?=
# For splicectl gpu-check, such as --device GPU-...
GPUCHECKFLAGS ?=
# The interpreter that creates the Python environments.
PYTHON    ?= python3
# For Prometheus: the one in PATH, or the one unpacked by .ci/run.
PROMTOOL  ?= $(or $(shell command -v promtool 2>/dev/null),$(wildcard $(CURDIR)/bin/prometheus/usr/bin/promtool),promtool)

# Separate modules, so that dependencies of tests and generators stay out of go.mod. The
# laboratory and the dashboard's tests have their own targets.
LAB     := scripts/lab
BROWSER := scripts/browsercheck
MODULES := $(filter-out $(LAB),$(patsubst %/go.mod,%,$(wildcard scripts/*/go.mod docker/*/go.mod)))

# Environments of the Python side: bin/python for its linters and plain tests,
# bin/engines, some 5 GB, with torch, transformers and vLLM.
PYDIR    := connector/python
PYENV    := $(CURDIR)/bin/python
ENGINES  := $(CURDIR)/bin/engines
SGLANG   := $(CURDIR)/bin/sglang
PYWANTED := $(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYSKIP   := SKIP Python: python3 3.11 or later with venv is needed (Debian: python3-venv), or PYTHON=...

# golangci-lint is pinned only here; .golangci.yml configures it.
LINT_VERSION := v2.15.0
LINT := $(CURDIR)/bin/tools/golangci-lint-$(LINT_VERSION)

.DEFAULT_GOAL := help
.PHONY: help build static fakecuda demo demo-tables demo-cluster torture torture-long hostile test test-modules test-lab check-alerts test-network race lint lint-lab fuzz faults reference bench bench-disk bench-network drift \
  generate man image image-cuda clean ptx python test-python lint-python engines test-engines test-engines-all test-long test-sglang demo-vllm demo-sglang bench-engines bench-sglang faults-engines faults-sglang fidelity \
  gpu-check gpu-check-bundle

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/spliced, bin/splicectl and bin/splicelab; they load a CUDA driver where there is one, and need glibc
	$(GOBUILD) -o bin/spliced ./daemon/cmd/spliced
	$(GOBUILD) -o bin/splicectl ./api/cmd/splicectl
	cd $(LAB) && $(GOBUILD) -o $(CURDIR)/bin/splicelab ./cmd/splicelab
	@echo 'the programs in bin link glibc, for the CUDA driver; make static builds them without either'

static: ## the same as static binaries without CUDA, in bin/static
	$(GOBUILD) -trimpath $(STATIC) -o bin/static/spliced ./daemon/cmd/spliced
	$(GOBUILD) -trimpath $(STATIC) -o bin/static/splicectl ./api/cmd/splicectl
	cd $(LAB) && $(GOBUILD) -trimpath $(STATIC) -o $(CURDIR)/bin/static/splicelab ./cmd/splicelab

fakecuda: ## bin/fakecuda/libcuda.so.1: a CUDA driver without a GPU, for tests; needs cc and c++
	go run ./gpuipc/cuda/fakecuda/build bin/fakecuda

demo: build ## RAG requests with a kill -9 in the middle, and conversations, with the daemon and without
	bin/splicectl demo >bin/demo.txt && cat bin/demo.txt || { cat bin/demo.txt; exit 1; }
	@if $(PYWANTED); then $(PYTHON) scripts/demo/tables.py docs/demo.md bin/demo.txt; else echo '$(PYSKIP)'; fi

demo-tables: build ## write what the demo prints into docs/demo.md
	bin/splicectl demo >bin/demo.txt
	$(PYTHON) scripts/demo/tables.py --write docs/demo.md bin/demo.txt

demo-cluster: build ## three daemons and two engines on this machine: what one computes, another one places
	bin/splicectl demo-cluster

torture: build ## kill -9 and lost power, five loops, and 10,000 clients of a fake GPU that die
	bin/splicectl torture -loops 5
	SPLICED_LONG=1 go test -count=1 -v -timeout 30m -run 'LeaveNothing$$' ./daemon

torture-long: build ## the same with 100 loops
	bin/splicectl torture -loops 100

hostile: python ## every attack of scripts/lab/hostile and beside it, one row each; root, for cgroups, users and mounts
	cd $(LAB) && go run ./hostile/table

# golangci-lint vets all packages and their tests; without debug tables a test links in half the
# time. The timeout is for busy machines.
TEST       := go test -vet=off -ldflags=-w -timeout 30m
UNDER_RACE := CGO_ENABLED=1 $(TEST) -race -tags invariants

test: ## each test once, those of packages with goroutines or locks under the race detector; then the Python side without torch
	$(MAKE) --no-print-directory -j2 race test-modules
	$(TEST) -p $(PACKAGES) $(TESTFLAGS) $$(scripts/packages plain)
	$(TEST) $(TESTFLAGS) -run 'Allocate' ./connector ./tiering/disk/codec # not counted under the race detector
	$(MAKE) --no-print-directory test-python

test-modules: ## tests of the modules in scripts and docker, without the laboratory and the dashboard
	@for m in $(filter-out $(BROWSER),$(MODULES)); do echo "-- $$m"; (cd $$m && $(TEST) $(TESTFLAGS) ./...) || exit 1; done

test-long: ## all tests without the race detector, none of them shortened
	$(TEST) -p $(PACKAGES) $(TESTFLAGS) ./...

test-lab: build lint-lab ## linters and tests of the laboratory, scripts/lab, and torture; those of hostile and network skip without root
	@sum=$$(scripts/tested lab --sum) && (cd $(LAB) && $(TEST) -p $(PACKAGES) $(TESTFLAGS) ./...) && \
	  $(MAKE) --no-print-directory torture && \
	  if [ -z '$(TESTFLAGS)' ] && [ "$$(id -u)" = 0 ]; then echo "$$sum" >$(LAB)/tested.sum; fi

check-alerts: ## promtool over the rules for Prometheus, their tests, the board's queries and a living daemon's metrics; says why it skips
	@if ! command -v $(PROMTOOL) >/dev/null; then \
	  echo 'SKIP alerts: promtool is missing (Debian: package prometheus, or unpack only it, see .ci/run), or PROMTOOL=...'; \
	else \
	  $(PROMTOOL) check rules docker/monitoring/spliced.rules.yaml && \
	  (cd docker/monitoring && $$(command -v $(PROMTOOL)) test rules spliced.rules_test.yaml) && \
	  out=$$(mktemp) && { PROMTOOL=$$(command -v $(PROMTOOL)) $(UNDER_RACE) -short -count=1 -v -run 'RulesAndBoards|EachAlert|Promtool' ./daemon >$$out 2>&1; code=$$?; \
	  grep -E '^(---|ok|FAIL|panic)|alerts_test.go' $$out; rm -f $$out; exit $$code; }; \
	fi

test-network: ## clusters of real daemons on networks that part, lose, delay and lie, a line each; root and /dev/net/tun
	@out=$$(mktemp); go test -C $(LAB) -count=1 -v ./network/... >$$out 2>&1; code=$$?; grep -vE '^ *(=== |--- PASS)' $$out; rm -f $$out; exit $$code

# Checks the dashboard's accessibility; for tests only (MPL-2.0), so it is fetched and not stored
# here.
AXE_VERSION := 4.14.1
AXE_SHA256  := 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
AXE         := $(CURDIR)/bin/tools/axe-$(AXE_VERSION).min.js

.PHONY: test-ui axe screenshots

test-ui: ## the dashboard in chromium, without a window; says why it skips
	@sum=$$(scripts/tested ui --sum) && out=$$(mktemp); go test -C $(BROWSER) -count=1 -v -timeout 20m . >$$out 2>&1; code=$$?; \
	  grep -vE '^ *(=== |--- PASS)' $$out; if [ $$code = 0 ] && grep -q -- '--- PASS: TestRealDaemon' $$out; then echo "$$sum" >$(BROWSER)/tested.sum; fi; \
	  rm -f $$out; exit $$code

axe: $(AXE) ## axe-core for test-ui, from npm

$(AXE):
	mkdir -p $(@D) $(@D)/axe.tmp
	cd $(@D)/axe.tmp && npm pack --silent axe-core@$(AXE_VERSION) && tar -xzf axe-core-$(AXE_VERSION).tgz package/axe.min.js
	echo '$(AXE_SHA256)  $(@D)/axe.tmp/package/axe.min.js' | sha256sum -c --quiet
	mv $(@D)/axe.tmp/package/axe.min.js $@ && rm -r $(@D)/axe.tmp

screenshots: build ## docs/images/ui-*.png, of a daemon that serves the demo, by chromium
	cd $(BROWSER) && SPLICED_BIN=$(CURDIR)/bin SPLICED_SCREENSHOTS=$(CURDIR)/docs/images go test -count=1 -v -timeout 20m -run 'TestScreenshots$$' .

race: ## with the race detector and invariants: tests of packages that have goroutines or locks, long ones shortened
	$(UNDER_RACE) -p $(PACKAGES) -short $(TESTFLAGS) $$(scripts/packages raced)

lint: $(LINT) ## the linters of .golangci.yml, a vet of what other tags and arm64 compile, ruff and mypy; without the laboratory
	$(LINT) run --allow-parallel-runners ./...
	@for m in $(MODULES); do (cd $$m && go vet ./...) || exit 1; done
	go vet -tags lockholds ./tiering
	go vet $(STATIC) ./gpuipc/cuda/driver ./gpuipc/cuda/fakecuda
	GOARCH=arm64 go vet $(STATIC) ./gpuipc/cuda/driver ./gpuipc/kernel ./tiering/disk/codec # all that differs there
	$(MAKE) --no-print-directory lint-python

lint-lab: $(LINT) ## the same linters over the laboratory, scripts/lab
	cd $(LAB) && $(LINT) run --allow-parallel-runners ./...
	cd $(LAB) && GOARCH=arm64 go vet $(STATIC) ./refengine/enginekernel

$(LINT):
	mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(@D)/golangci-lint $@

python: ## the pinned environment bin/python: pytest, ruff, mypy, xxhash
	@if ! $(PYWANTED); then echo '$(PYSKIP)'; \
	elif ! cmp -s $(PYDIR)/requirements.txt $(PYENV)/requirements.txt; then \
	  rm -rf $(PYENV) && $(PYTHON) -m venv $(PYENV) && \
	  $(PYENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $(PYDIR)/requirements.txt && \
	  cp $(PYDIR)/requirements.txt $(PYENV)/requirements.txt; fi

test-python: python build ## tests of connector/python that need no torch
	@if $(PYWANTED); then cd $(PYDIR) && $(PYENV)/bin/python -m pytest -q -rs $(PYTESTFLAGS); else echo '$(PYSKIP)'; fi

lint-python: python ## ruff and mypy --strict over connector/python
	@if ! $(PYWANTED); then echo '$(PYSKIP)'; else cd $(PYDIR) && \
	  $(PYENV)/bin/ruff check . && $(PYENV)/bin/ruff format --check . && $(PYENV)/bin/mypy; fi

engines: ## the pinned environment bin/engines: torch, transformers, vLLM for CPUs; 4.5 GiB
	@scripts/engines/environment --python $(PYTHON) $(ENGINES) || [ $$? = 3 ]

# Arguments of demo-vllm and demo-sglang, see scripts/demo-engines/demo.py --help.
DEMOFLAGS ?=

# Engine tests to run: the default ones, or '' for all.
MARKED ?= -m 'not wide'

test-engines: build ## tests of connector/python with torch, transformers and vLLM, one class of models per family; says why it skips
	@scripts/engines/environment --python $(PYTHON) $(ENGINES); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  $(TEST) -run 'VLLM|OverARestart' ./daemon/events && \
	  cd $(PYDIR) && $(ENGINES)/bin/python -m pytest -q -rs $(ENGINEFLAGS) $(MARKED) tests/engine

test-sglang: build ## tests in SGLang, on a CPU; 0.8 GiB beside bin/engines; says why it skips
	@scripts/engines/environment --python $(PYTHON) $(ENGINES) && \
	  scripts/engines/sglang $(ENGINES) $(SGLANG); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  cd $(PYDIR) && $(SGLANG)/bin/python -m pytest -q $(ENGINEFLAGS) $(MARKED) \
	    tests/engine/test_sglang_*.py tests/engine/test_drift.py

test-engines-all: ## test-engines and test-sglang with every class, setting and number of processes
	$(MAKE) --no-print-directory test-engines MARKED=
	$(MAKE) --no-print-directory test-sglang MARKED=

drift: python ## what the newest vLLM, SGLang and transformers have changed that adapters stand on, by their sources; a report
	@if ! $(PYWANTED); then echo '$(PYSKIP)'; else scripts/engines/drift $(PYENV)/bin/python; fi

demo-vllm: build ## a chat client in front of stock vLLM servers without us and with us; some minutes; says why it skips
	@scripts/engines/environment --python $(PYTHON) $(ENGINES); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  $(ENGINES)/bin/python scripts/demo-engines/demo.py $(DEMOFLAGS)

demo-sglang: build ## the same in front of SGLang, on a CPU with kernels of the tests; some minutes; says why it skips
	@scripts/engines/environment --python $(PYTHON) $(ENGINES) && \
	  scripts/engines/sglang $(ENGINES) $(SGLANG); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  $(SGLANG)/bin/python scripts/demo-engines/demo.py --engine sglang --layers 4 --hidden 512 $(DEMOFLAGS)

bench-engines: build ## time to the first token in vLLM with and without splicing; some minutes
	@scripts/engines/environment --python $(PYTHON) $(ENGINES); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  $(ENGINES)/bin/python scripts/bench-engines/bench.py

bench-sglang: build ## the same in SGLang, on a CPU with kernels of the tests
	@scripts/engines/environment --python $(PYTHON) $(ENGINES) && \
	  scripts/engines/sglang $(ENGINES) $(SGLANG); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  $(SGLANG)/bin/python scripts/bench-engines/bench.py --engine sglang

REQUESTS ?= 5000
faults-engines: build ## REQUESTS requests in each mode to vLLM on two ranks, beside a daemon in trouble: 0 wrong answers
	@scripts/engines/environment --python $(PYTHON) $(ENGINES); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  cd $(PYDIR) && PYTHONPATH=src:tests $(ENGINES)/bin/python -m engine.faults --requests $(REQUESTS)

faults-sglang: build ## REQUESTS requests to SGLang beside a daemon in trouble: 0 wrong answers
	@scripts/engines/environment --python $(PYTHON) $(ENGINES) && \
	  scripts/engines/sglang $(ENGINES) $(SGLANG); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  cd $(PYDIR) && PYTHONPATH=src:tests $(SGLANG)/bin/python -m engine.sglang_faults --requests $(REQUESTS)

fidelity: ## what each way of reuse costs in answers: docs/fidelity.md; several hours
	@scripts/engines/environment --python $(PYTHON) $(ENGINES); code=$$?; \
	  if [ $$code != 0 ]; then [ $$code = 3 ]; exit; fi; \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --out docs/results/fidelity.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --places --questions 300 --out docs/results/fidelity-places.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --forms --questions 6500 --out docs/results/fidelity-forms.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --forms --model scripts/tinyhybrid/long --notes 2,4,6 --questions 900 \
	    --out docs/results/fidelity-forms-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --keys --out docs/results/fidelity-keys.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --keys --model scripts/tinyhybrid/long --notes 2,4,6 --questions 400 \
	    --out docs/results/fidelity-keys-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --seams --out docs/results/fidelity-seams.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --seams --windows 0,4,8,16,32,64,128 --model scripts/tinyhybrid/long --notes 2,4,6 \
	    --out docs/results/fidelity-seams-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --captures --questions 300 --out docs/results/fidelity-captures.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --captures --model scripts/tinyhybrid/long --notes 2,3,4,5,6 --questions 300 \
	    --out docs/results/fidelity-captures-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --settings --out docs/results/fidelity-settings.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --settings --model scripts/tinyhybrid/long --notes 2,3,4,5,6 \
	    --out docs/results/fidelity-settings-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --oracles --questions 300 --out docs/results/fidelity-oracles.json && \
	  $(ENGINES)/bin/python scripts/fidelity/measure.py --oracles --model scripts/tinyhybrid/long --notes 2,3,4,5,6 --questions 300 \
	    --out docs/results/fidelity-oracles-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/drift.py --out docs/results/fidelity-drift.json && \
	  $(ENGINES)/bin/python scripts/fidelity/drift.py --model scripts/tinyhybrid/long --notes 2,4,6 --prompts 20 --step 64 \
	    --out docs/results/fidelity-drift-wide.json && \
	  $(ENGINES)/bin/python scripts/fidelity/report.py docs/results docs/fidelity.md

fuzz: ## every fuzz target for FUZZTIME each
	@{ go list -f '{{.Dir}}' ./...; go list -C $(LAB) -f '{{.Dir}}' ./...; } | while read -r dir; do \
	  grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go 2>/dev/null | cut -c6- | while read -r f; do \
	    echo "-- $$f in $$dir"; (cd "$$dir" && go test -run '^$$' -fuzz "^$$f\$$" -fuzzminimizetime 10x -fuzztime $(FUZZTIME) .) || exit 1; done || exit 1; done

faults: ## a million faults in what the disk tier writes and reads, 0 wrong bytes; some minutes
	SPLICED_LONG=1 go test -count=1 -v -timeout 30m -run 'TestNoFaultIsServed$$' ./tiering/disk

reference: ## every number of Marconi's simulator that our caches have to meet; many minutes
	SPLICED_LONG=1 go test -C $(LAB) -count=1 -v -timeout 60m -run 'MeetTheReference$$' ./replay/prefixcache

bench: build ## Go benchmarks, then the rows of `splicectl bench`
	-$(MAKE) --no-print-directory bin/openblas-compose
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) ./...
	go test -C $(LAB) -run '^$$' -bench . -benchtime $(BENCHTIME) ./...
	go test -tags lockholds -run '^$$' -bench LockHolds -benchtime 20x ./tiering
	bin/splicectl bench --suite quick
	bin/splicectl bench --suite scale

bench-disk: build ## the disk tier beside fio, Redis and Pebble; DISKDIR names a directory of the disk
	bin/splicectl bench --suite disk --dir '$(DISKDIR)'
	bin/splicectl bench --suite pebble --dir '$(DISKDIR)'

bench-network: ## a fetch of 64 MiB between two namespaces beside iperf3 and Mooncake's transfer engine; root, ip, iperf3
	@scripts/mooncake/environment --python $(PYTHON) $(CURDIR)/bin/mooncake && python=$(CURDIR)/bin/mooncake/bin/python; code=$$?; [ $$code = 0 ] || [ $$code = 3 ] && \
	  go test -C $(LAB) -v -timeout 20m -run '^$$' -bench Beside -benchtime $(ROUNDS)x ./network -mooncake "$$python" -results $(CURDIR)/docs/results/network.json

# Only for comparison; without it, or without the library, that row is left out.
bin/openblas-compose: scripts/openblas/compose.c
	mkdir -p $(@D)
	$(CC) -O3 -mavx2 -mfma -mf16c -o $@ $< -ldl

generate: ## rewrite generated files; leaves a clean tree when nothing changed
	go generate ./...
	@for m in $(MODULES) $(LAB); do (cd $$m && go generate ./...) || exit 1; done

man: build ## bin/man: manual pages of splicectl's commands
	bin/splicectl man bin/man
	bin/splicelab man bin/man

ptx: ## rewrite the kernels' PTX from their sources; needs clang of one release
	scripts/ptx/ptx.sh

image: static ## container image of the static binaries, with buildah
	buildah bud --isolation chroot --timestamp 0 --target prebuilt -t $(IMAGE) \
	  --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -f docker/Dockerfile .

image-cuda: build ## container image for nodes with NVIDIA GPUs, on CUDABASE, with buildah
	buildah bud --isolation chroot --timestamp 0 --target prebuilt-cuda -t $(CUDAIMAGE) --build-arg CUDABASE=$(CUDABASE) \
	  --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -f docker/Dockerfile .

gpu-check-bundle: build ## bin/gpu-check.tar.gz: all that checks a machine with a GPU, where nothing is to be downloaded; WHEELS=dir goes along
	scripts/gpu-check/bundle bin bin/gpu-check.tar.gz $(WHEELS)

gpu-check: gpu-check-bundle ## check the GPU of this machine; table and gpu-check.json; says why it skips
	@rm -rf bin/gpu-check && tar -C bin -xzf bin/gpu-check.tar.gz
	@bin/gpu-check/run $(GPUCHECKFLAGS) || { code=$$?; [ $$code = 3 ] && echo 'SKIP gpu-check: no driver or no GPU here'; }

clean: ## remove what the targets built
	rm -rf bin dist
