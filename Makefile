# make demo, make test: each sets up everything it needs, then does its job. make help lists the rest.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find CMakeLists.txt pyproject.toml prophet native python/byteprophet.pth -type f -not -name '*.md')
CXX_FILES := $(shell find prophet native tests benchmarks -name '*.h' -o -name '*.cc')
BUILD_TESTS := build/tests
NVIDIA := build/nvidia
# How many tests run at once: most wait, for jobs that are paced.
TEST_PROCESSES ?= 5
# MXNet 1.9.1 needs numpy 1.23.5, which has no wheels for Python 3.12 and later.
MXNET_VENV := .venv-mxnet
MXNET_PYTHON ?= $(PYTHON)
MXNET_POSSIBLE = $(MXNET_PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))'
MXNET_REFUSAL := MXNet 1.9.1 needs Python 3.10 or 3.11: set MXNET_PYTHON
DOCS_VENV := .venv-docs
# Packages are installed with --no-compile: to compile all of their modules takes 40 s of one processor, and Python
# keeps what it compiles when it first imports one, unless this variable forbids that.
unexport PYTHONDONTWRITEBYTECODE
# One name of the compiler in all builds: for another one, ccache compiles everything once more.
export CXX
SITE := build/site

.PHONY: FORCE help build demo test test-thorough test-compiled test-cxx test-python test-sanitizers fuzz bench-native lint format clean mxnet demo-mxnet test-mxnet docs release test-packages test-pages
help:
	@echo "make demo    train a small network under every policy on a slow link and compare"
	@echo "make test    run the tests"
	@echo "make test-thorough  run all tests, with all combinations and more random cases"
	@echo "make test-sanitizers  run the C++ tests under AddressSanitizer, UBSan, LeakSanitizer and ThreadSanitizer"
	@echo "make mxnet   make or update $(MXNET_VENV)/, with MXNet in place of PyTorch; make demo-mxnet trains there"
	@echo "make fuzz    drive every policy through 100,000 random jobs on a virtual clock"
	@echo "make bench-native  what queue operations and policy decisions cost with 100, 2,000 and 20,000 pending; how fast graphs are replayed"
	@echo "make docs    build the site of the documents in $(SITE)/ (index.html), with every link checked"
	@echo "make test-pages  follow the task pages of the documents: all of their commands"
	@echo "make release build the packages of a release in dist/ (docs/packages.md)"
	@echo "make test-packages  install an sdist of this checkout into a fresh environment and run the first job there; DIST=dist: the packages of a release"
	@echo "make lint    check style and types"
	@echo "make build   make or update $(VENV)/ with the command byteprophet (with TORCH=torch, beside what pip gives)"

build: $(VENV)/.built

# Which torch was asked for: written when another one is.
$(VENV)/.torch: FORCE
	@mkdir -p $(VENV); echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' >$@

# What compiles. It needs no torch, and the C++ tests need nothing else.
$(VENV)/.tools: pyproject.toml native/system-packages.sh
	PYTHON=$(PYTHON) sh native/system-packages.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile "scikit-build-core>=0.11" "nanobind>=2.2" "cmake>=3.25,<5" ninja
	touch $@

# That torch first: what comes after finds it there and fetches no other.
$(VENV)/.dependencies: $(VENV)/.tools $(VENV)/.torch
	$(BIN)/pip install --quiet --no-compile $(TORCH)
	touch $@

$(VENV)/.built: $(VENV)/.dependencies $(NATIVE)
	CMAKE_BUILD_PARALLEL_LEVEL=$${CMAKE_BUILD_PARALLEL_LEVEL:-$$(nproc)} \
	  $(BIN)/pip install --quiet --no-compile --no-build-isolation --editable ".[dev]"
	touch $@

demo: build
	$(BIN)/python experiments/demo.py

mxnet: $(MXNET_VENV)/.built

$(MXNET_VENV)/.dependencies: pyproject.toml native/system-packages.sh
	@$(MXNET_POSSIBLE) || { echo "byteprophet: error: $(MXNET_REFUSAL)" >&2; exit 2; }
	PYTHON=$(MXNET_PYTHON) sh native/system-packages.sh
	$(MXNET_PYTHON) -m venv $(MXNET_VENV)
	$(MXNET_VENV)/bin/pip install --quiet --no-compile numpy==1.23.5 mxnet==1.9.1 \
	  "scikit-build-core>=0.11" "nanobind>=2.2" "cmake>=3.25,<5" ninja
	touch $@

$(MXNET_VENV)/.built: $(MXNET_VENV)/.dependencies $(NATIVE)
	CMAKE_BUILD_PARALLEL_LEVEL=$${CMAKE_BUILD_PARALLEL_LEVEL:-$$(nproc)} \
	  $(MXNET_VENV)/bin/pip install --quiet --no-compile --no-build-isolation --config-settings=build-dir=build/mxnet \
	  --editable ".[mxnet]" pytest pytest-timeout "pytest-rerunfailures>=16" scikit-learn
	touch $@

demo-mxnet: mxnet
	$(MXNET_VENV)/bin/python experiments/gluon_demo.py

# Most Python tests wait, and what is compiled meanwhile has a lower priority. The C++ tests are
# compiled from the start, beside pip, which uses one processor for a minute. What has nothing to
# check first comes first: otherwise make 4.3 may not begin the second before the first has ended.
test: $(VENV)/.tools
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-compiled test-python

# All combinations, too, and more random cases (tests/thorough.py).
test-thorough:
	$(MAKE) --no-print-directory test THOROUGH=--thorough

test-compiled:
	$(MAKE) --no-print-directory test-cxx
	$(MAKE) --no-print-directory test-mxnet

# The C++ tests, plain or under sanitizers, each in a build directory of its own.
define run-cxx-tests
	$(BIN)/cmake -G Ninja -S . -B $(1) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DBYTEPROPHET_TESTS=ON -DBYTEPROPHET_BYTEPS=OFF \
	  -DBYTEPROPHET_SANITIZE=$(2) -DBYTEPROPHET_NVIDIA=$(3) >/dev/null
	nice -n 5 $(BIN)/cmake --build $(1)
	$(BIN)/ctest --test-dir $(1) --output-on-failure --parallel $(TEST_PROCESSES)
endef

test-cxx: $(NVIDIA)/.installed
	$(call run-cxx-tests,$(BUILD_TESTS),,$(CURDIR)/$(NVIDIA))

# Headers and libraries, only to compare with: nothing of ours is built with them.
$(NVIDIA)/.installed: tests/device/nvidia.txt | $(VENV)/.tools
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(NVIDIA) --requirement $<
	touch $@

test-sanitizers: $(VENV)/.tools
	$(call run-cxx-tests,build/tests-address,address)
	$(call run-cxx-tests,build/tests-thread,thread)

fuzz: test-cxx
	BYTEPROPHET_FUZZ_SCENARIOS=$${BYTEPROPHET_FUZZ_SCENARIOS:-100000} \
	  $(BUILD_TESTS)/tests/prophet/prophet_tests --gtest_filter='Fuzz.*'

bench-native: build
	$(BIN)/cmake -G Ninja -S . -B build/benchmarks -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DBYTEPROPHET_BENCHMARKS=ON -DBYTEPROPHET_BYTEPS=OFF >/dev/null
	$(BIN)/cmake --build build/benchmarks --target prophet_benchmarks
	build/benchmarks/benchmarks/prophet_benchmarks

# A shared machine may starve a real job. A few tests in all are run once more, and named with what they said.
test-python: build
	$(BIN)/python -m pytest $(THOROUGH) --durations=30 --processor-seconds=60 -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder \
	  --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks

test-mxnet:
	@if $(MXNET_POSSIBLE); then \
	  nice -n 5 $(MAKE) mxnet && $(MXNET_VENV)/bin/python -m pytest $(THOROUGH) tests/mxnet \
	    --reruns 1 --max-suite-reruns 1 --rerun-show-tracebacks; \
	else echo "byteprophet: tests/mxnet not run: $(MXNET_REFUSAL)"; fi

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy experiments/*.py experiments/digits/*.py experiments/damage/*.py
	$(BIN)/mypy experiments/gluon/*.py
	$(BIN)/mypy experiments/models/*.py
	$(BIN)/mypy tools/*.py
	$(BIN)/mypy tools/site/*.py
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# An environment of its own builds the site, from the same Python: it imports the package of $(VENV).
$(DOCS_VENV)/.installed: tools/site/requirements.txt | $(VENV)/.dependencies
	$(BIN)/python -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --requirement $<
	touch $@

docs: build $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet \
	  --conf-dir tools/site --doctree-dir build/site-doctrees docs $(SITE)
	@echo "$(SITE)/index.html"

# All commands of the task pages; the suite leaves out those that need minutes.
test-pages: build
	BYTEPROPHET_ALL_PAGES=1 $(BIN)/python -m pytest tests/documents

release:
	$(PYTHON) tools/release.py --torch "$(TORCH)" $(if $(GPG_KEY),--gpg-key "$(GPG_KEY)")

# Packages in environments of their own, which run the first job: an sdist of this checkout, which is compiled for
# minutes, or those of a release (make release test-packages DIST=dist).
PACKAGES = build/packages
test-packages: build
ifdef DIST
	$(BIN)/python experiments/release.py --dist $(DIST) --torch "$(TORCH)"
else
	rm -rf $(PACKAGES)
	$(BIN)/python -c "from scikit_build_core.build import build_sdist; build_sdist('$(PACKAGES)')"
	cd $(PACKAGES) && sha256sum *.tar.gz >SHA256SUMS
	$(BIN)/python experiments/release.py --dist $(PACKAGES) --torch "$(TORCH)"
endif

clean:
	rm -rf build dist $(VENV) $(MXNET_VENV) $(DOCS_VENV)
