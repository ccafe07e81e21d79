# make demo, make test: each sets up what it needs first. TF=2.21 chooses another TensorFlow.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help env horovod demo packages test contract engines check-engines check-tournaments site
.PHONY: check-gpu check-ways check-fit
.PHONY: lint clean clean-env

TF ?= 2.16.2
# The Python that makes the environment; unset: the first that fits.
PYTHON ?=
PYTEST_ARGS ?=
# no: set up without Horovod, whose build takes minutes. A later make without it builds Horovod.
HOROVOD ?= yes
MPI_PACKAGES := libopenmpi-dev openmpi-bin

ENV := .venv/tf-$(TF)
BIN := $(ENV)/bin
CONSTRAINTS := constraints/tf-$(TF).txt
SUPPORTED := $(patsubst constraints/tf-%.txt,%,$(sort $(wildcard constraints/tf-*.txt)))
HASHES := constraints/tf-$(TF).hashes
PIP_INSTALL := $(BIN)/python -m pip install --progress-bar off --no-input --no-deps

help:
	echo "make demo       compare native TensorFlow with Horovod on this machine, and write a report"
	echo "make test       format, lint, types, the site of the docs, tests; CI adds make contract TF=2.21"
	echo "make contract   what every backend, and large-model support, owe on each TensorFlow"
	echo "make engines    Maestro and Merlin, in an environment of their own; make check-engines runs them"
	echo "make site       the docs as a site, in build/site; a broken link is an error"
	echo "make check-tournaments  trainers of every backend, killed ones, and those under SLURM"
	echo "make check-ways  public networks, all ways and backends against one device"
	echo "make check-fit  scripts with Keras's fit, all backends against one device"
	echo "make check-gpu  results of a GPU against those of the CPU; it needs a GPU"
	echo "make lint       format, lint and types only"
	echo "make env        only set up, in $(ENV)"
	echo "make horovod    try again to build Horovod; make env HOROVOD=no leaves it out"
	echo "make clean      remove what tools cached here; make clean-env removes $(ENV)"
	echo "TF=$(TF) is the TensorFlow; supported: $(SUPPORTED). PYTHON=python3.11 makes the environment."

# A stamp holds the hash of what its step was made from, and is written last, by rename. So a step
# that was killed has no stamp, and an environment whose packages have none is made anew.
env:
	fail() { echo "make: $$*" >&2; exit 2; }
	hash() { sha256sum | cut -d ' ' -f 1; }
	done_with() { [ -x $(BIN)/python ] && [ "$$(cat $(ENV)/$$1.stamp 2>/dev/null)" = "$$2" ]; }
	stamp() { echo "$$2" >$(ENV)/$$1.stamp.new; mv $(ENV)/$$1.stamp.new $(ENV)/$$1.stamp; }
	logged() {
	    local log=$(ENV)/$$1.log; shift
	    "$$@" >>$$log 2>&1 || { tail -n 20 $$log >&2; fail "the set-up failed; all of it: $$log"; }
	}
	find_python() {
	    local candidate version found=
	    for candidate in $(or $(PYTHON),python3.11 python3.12 python3); do
	        version=$$("$$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
	        case $$version in 3.11.*|3.12.*) python=$$candidate; return;; esac
	        found="$$found$${found:+, }$$candidate is $$version"
	    done
	    fail "tfunet needs Python 3.11 or 3.12; $${found:-$(or $(PYTHON),python3) does not run}." \
	        "Install one, then type: make PYTHON=/path/to/python3.11"
	}
	case $(HOROVOD) in yes|no) ;; *) fail "HOROVOD=$(HOROVOD); allowed: yes, no.";; esac
	[ -f "$(CONSTRAINTS)" ] || fail "TF=$(TF) has no constraints file. Supported: $(SUPPORTED)."
	packages=$$({ cat $(HASHES) setup.cfg; echo "$$PWD"; } | hash)
	# With the tools that were found: installing a compiler or MPI is reason to build again.
	tools=$$(command -v $${CXX:-c++} g++ clang++ mpicxx make || true)
	horovod=$$({ cat hvd/build.py; echo "$$packages $$tools"; } | hash)
	up_to_date() {
	    done_with packages $$packages && { [ $(HOROVOD) = no ] || done_with horovod $$horovod; }
	}
	if up_to_date; then exit; fi
	mkdir -p .venv
	exec 9>>$(ENV).lock
	flock --nonblock 9 || { echo "Another make sets up $(ENV); waiting for it ..."; flock 9; }
	if up_to_date; then exit; fi
	if ! done_with packages $$packages; then
	    remake=; [ -x $(BIN)/python ] && [ -f $(ENV)/packages.stamp ] || remake=yes
	    rm -f $(ENV)/packages.stamp $(ENV)/horovod.stamp
	    if [ $$remake ]; then
	        find_python
	        echo "[1/3] Virtual environment $(ENV) with $$python ..."
	        rm -rf $(ENV); mkdir $(ENV)
	        logged venv $$python -m venv $(ENV)
	    fi
	    echo "[2/3] Python packages for TensorFlow $(TF) (about 3 minutes) ..."
	    # Wheels only, each with its hash: nothing that is downloaded runs before it is checked.
	    logged packages $(PIP_INSTALL) --require-hashes --only-binary :all: -r $(HASHES)
	    # compat: one .pth line, so that a package added later is found without a new set-up.
	    logged packages $(PIP_INSTALL) --no-index --no-build-isolation \
	        --config-settings editable_mode=compat --editable .
	    stamp packages $$packages
	fi
	if [ $(HOROVOD) = no ]; then echo "[3/3] Horovod is left out; make horovod builds it."; exit; fi
	echo "[3/3] Horovod (about 3 minutes, the first time) ..."
	status=0
	$(BIN)/python -m hvd.build --wheels .venv/wheels --log $(ENV)/horovod.log || status=$$?
	# 3: it could not be built, and it has said why; all but its backend works.
	case $$status in 0|3) stamp horovod $$horovod;; *) exit $$status;; esac

horovod:
	rm -f $(ENV)/horovod.stamp
	$(MAKE) --no-print-directory env HOROVOD=yes

demo: env
	$(BIN)/tfunet sweep run studies/quickstart.toml

lint: env
	$(BIN)/ruff format --quiet --check --diff .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary

# What the tests under mpirun need, and Horovod's build before them, and those in a browser; only
# tests install anything outside of .venv, and only as root on Debian. Where $CI is set, it tries
# three times, and nothing may be left out.
packages:
	install() {
	    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$$@"
	}
	provide() {
	    if [ $$(id -u) = 0 ] && command -v apt-get >/dev/null; then
	        mkdir -p .venv
	        echo "Installing $$* ..."
	        for attempt in 1 $${CI:+2 3}; do
	            if { install "$$@" || { apt-get update && install "$$@"; }; } >.venv/packages.log 2>&1
	            then return; fi
	            [ -z "$${CI:-}" ] || sleep 10
	        done
	        tail -n 3 .venv/packages.log >&2
	    fi
	    echo "Some tests are left out. For them: sudo apt-get install $$*"
	    left_out=yes
	}
	left_out=
	has_mpi() { command -v mpicxx && command -v mpirun; }
	has_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
	has_mpi >/dev/null || provide $(MPI_PACKAGES)
	has_browser >/dev/null || provide chromium
	if [ "$${CI:-}" ] && [ $$left_out ]; then exit 2; fi

# Two workers: of the tests that start processes, each takes whole files (tests/conftest.py), after
# the fast tests, so that a failure is seen early. Slow tests of one process come last: any worker
# takes them, and none waits long for the other.
# What fails is run once more: of 7,000 tests, many with processes, one may fail by chance. Its
# first failure is printed at the end.
AGAIN := --reruns 1

# What takes minutes of the contract: make contract has it, on any TensorFlow, and CI on the newest.
LONG := $(patsubst %,--ignore tests/contract/test_%.py,contract fit_runs split_runs stage_runs \
    tile_runs)

test: packages lint site
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder \
	    $(LONG) $(AGAIN) $(PYTEST_ARGS)

# The bits of steps with large-model support hang on TensorFlow's own code. every_kind.py has the
# kinds of model that make test leaves out.
EXACTNESS := tests/swap/test_exactness.py tests/swap/every_kind.py tests/swap/rewrite \
    tests/graph/test_gradient_sums.py

# What finds faults that are planted in our own code is the same on each TensorFlow, as are records
# and launchers: make test has it.
ON_ONE := $(patsubst %,--ignore tests/contract/test_%.py,broken_backends wrong_rules time_parts \
    kept_weight_runs three_processes region_runs lost_process shared_state_runs)

contract: env
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadgroup tests/contract \
	    $(ON_ONE) $(EXACTNESS) $(AGAIN) $(PYTEST_ARGS)

# Workflow engines. Apart, because they need other versions than TensorFlow.
ENGINES := .venv/engines
engines: env
	stamp=$$(sha256sum <constraints/engines.hashes)
	if [ "$$(cat $(ENGINES)/stamp 2>/dev/null)" != "$$stamp" ]; then
	    echo "Maestro and Merlin (about a minute) ..."
	    rm -rf $(ENGINES)
	    $(BIN)/python -m venv $(ENGINES)
	    $(ENGINES)/bin/python -m pip install --quiet --progress-bar off --no-input --no-deps \
	        --require-hashes --only-binary :all: -r constraints/engines.hashes
	    echo "$$stamp" >$(ENGINES)/stamp
	fi
	command -v redis-server >/dev/null ||
	    echo "For Merlin with workers, also: sudo apt-get install redis-server"

# One ensemble with every engine, a worker killed on the way: the same results, to the bit.
check-engines: engines
	export PATH="$$PWD/$(ENGINES)/bin:$$PATH" PYTHONPATH="$$PWD"
	$(BIN)/python benchmarks/engines.py --stand-in --samples 200
	$(BIN)/python benchmarks/engines.py --samples 6

# The docs as HTML. In an environment of its own, because its packages are no one else's. -W: a
# warning, such as that of a link to a file or heading that is not there, is an error.
SITE := .venv/site
site: env
	stamp=$$(sha256sum <constraints/site.hashes)
	if [ "$$(cat $(SITE)/stamp 2>/dev/null)" != "$$stamp" ]; then
	    echo "Sphinx (about a minute) ..."
	    rm -rf $(SITE)
	    $(BIN)/python -m venv $(SITE)
	    $(SITE)/bin/python -m pip install --quiet --progress-bar off --no-input --no-deps \
	        --require-hashes --only-binary :all: -r constraints/site.hashes
	    echo "$$stamp" >$(SITE)/stamp
	fi
	rm -rf build/site
	$(SITE)/bin/python -m sphinx -W --keep-going -q -c docs -d build/site-cache . build/site
	# The first page, under the name that servers look for.
	cp build/site/README.html build/site/index.html
	echo "Site: build/site/index.html"

# Tournaments with real processes, a quarter of an hour: of every backend, on two cores and on two
# nodes of a SLURM, and with a trainer that is killed at each of 20 random moments.
check-tournaments: packages env
	export PATH="$$PWD/$(BIN):$$PATH" PYTHONPATH="$$PWD"
	$(BIN)/python -m pytest tests/population/real_trainers.py tests/slurm/tournament_on_both.py \
	    $(PYTEST_ARGS)
	$(BIN)/python tests/population/kill_trainers.py --times 20

# Small networks after public architectures, by all ways on all backends, against one device; it
# writes docs/check-ways.md. NETWORKS="unet segnet" picks some, and leaves the page as it is.
NETWORKS ?=
check-ways: env
	export PATH="$$PWD/$(BIN):$$PATH" PYTHONPATH="$$PWD"
	$(BIN)/python benchmarks/check_ways.py $(if $(NETWORKS),--networks $(NETWORKS) --page build/check-ways.md)

# Scripts with Keras's fit on all backends, against one device; it writes docs/check-fit.md.
# SCRIPTS="vae gan" picks some, and leaves the page as it is. What has ended well is kept in
# build/check-fit until the code changes, so the same command goes on.
SCRIPTS ?=
check-fit: env
	export PATH="$$PWD/$(BIN):$$PATH" PYTHONPATH="$$PWD"
	$(BIN)/python benchmarks/check_fit.py --out build/check-fit \
	    $(if $(SCRIPTS),--only $(SCRIPTS) --page build/check-fit.md)

# On one GPU, two minutes with 16 cores: results against the CPU's, swapping, several processes,
# precisions, forecasts of memory, predictions. Without a GPU it fails.
GPU_WORKERS ?= 8
check-gpu: env
	export CUDA_VISIBLE_DEVICES="$${CUDA_VISIBLE_DEVICES-0}" PATH="$$PWD/$(BIN):$$PATH" PYTHONPATH="$$PWD"
	$(BIN)/python -c 'import tensorflow as tf; exit(0 if tf.config.list_physical_devices("GPU") else 1)' \
	    2>/dev/null || { echo "make: TensorFlow sees no GPU here; tfunet doctor says why." >&2; exit 2; }
	$(BIN)/python -m pytest tests/gpu/on_gpu.py -n $(GPU_WORKERS) --dist worksteal $(PYTEST_ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

clean-env:
	# The stamp first: a half-removed environment must not look whole.
	rm -f $(ENV)/packages.stamp
	rm -rf $(ENV)
