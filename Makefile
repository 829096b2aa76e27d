# Every target creates the virtual environment first, if there is none.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: test test-fast test-floor test-pythons check demo soak bench bench-quick bench-own docs format clean

# All tests: about 15 minutes on two cores. Many start, kill and wait for processes. Those that failed run once more, one
# at a time, to tell a defect from a machine that was too busy. Both runs are printed, and the second decides.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal || { \
	  test $$? -eq 1 && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1; }

# The unit tests alone: some minutes on two cores.
test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests/unit

# The oldest pyarrow, numpy and torch that pyproject.toml declares, in an environment of their own. It must import without
# pandas; then what reads and counts rows is tested. Left out: tests of datasets and torchdata; and what such a pyarrow
# itself cannot do: view types and nulls in fixed-size lists of Parquet, float16 from Python numbers.
FLOOR := build/floor
FLOOR_TESTS := $(addprefix tests/unit/,checkpoint counting formats index order pipeline sources stages values)
FLOOR_IGNORED := checkpoint/test_checksum.py checkpoint/test_versions.py formats/test_mds.py values/test_features.py values/test_images.py \
  values/test_media.py values/test_video.py
test-floor:
	test -x $(FLOOR)/bin/python || $(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install --quiet 'pyarrow==19.0.0' 'numpy==1.26.0' 'torch==2.3.0'
	PYTHONPATH=src $(FLOOR)/bin/python -c 'import midepoch.dataset.read, midepoch.loader'
	$(FLOOR)/bin/python -m pip install --quiet 'numpy==1.26.0' 'pandas<3' \
	  $$(grep -E '^(pytest|pytest-timeout|hypothesis|fsspec)==' constraints.txt)
	PYTHONPATH=src $(FLOOR)/bin/python -m pytest -q -p no:cacheprovider $(FLOOR_TESTS) \
	  $(FLOOR_IGNORED:%=--ignore=tests/unit/%) \
	  -k 'not (parquet and (view or (nulls and (fixed_size_list or matrix)))) and not types[float16]'

# What reads and counts rows, on other versions of Python, each in an environment of its own with the tested pyarrow and
# numpy and without torch. Files of tests that import torch are left out, and single tests that need it are skipped.
PYTHONS ?= python3.12 python3.13
test-pythons:
	for python in $(PYTHONS); do \
	  env=build/$$($$python -c 'import sys; print("python%d.%d" % sys.version_info[:2])') && \
	  { test -x $$env/bin/python || $$python -m venv $$env; } && \
	  $$env/bin/python -m pip install --quiet --constraint constraints.txt \
	    pyarrow numpy pandas pytest pytest-timeout hypothesis fsspec pillow && \
	  PYTHONPATH=src $$env/bin/python -m pytest -q -p no:cacheprovider \
	    $$(grep -rLE '^(import|from) (torch|datasets|av|soundfile)\b' --include='test_*.py' $(FLOOR_TESTS)) || exit 1; \
	done

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three minutes on two cores, and few packages. The picture is build/demo.png.
demo: $(DEMO)
	$(BIN)/python examples/demo/run.py

# Kill, stall and resize ranks, workers and a store at random, and audit every row. Linux, two cores. SEED repeats the
# decisions of a soak, and RUN one run of it.
MINUTES ?= 60
SEED ?= 0
soak: $(STAMP)
	PYTHONPATH=src:tests $(BIN)/python -m soak --minutes $(MINUTES) --seed $(SEED) $(if $(RUN),--run $(RUN))

# midepoch and others side by side, each in an environment of its own, which is made the first time: about 10 GB.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.peers

# The same with small data, one round, several contenders at a time, and the environments that are there: to see that
# everything runs. Less than two minutes on two cores.
bench-quick: $(STAMP)
	$(BIN)/python -m benchmarks.peers --quick

# midepoch alone, against its own targets.
bench-own: $(STAMP)
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.loader
	$(BIN)/python -m benchmarks.workers
	$(BIN)/python -m benchmarks.huggingface
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.mixing
	$(BIN)/python -m benchmarks.filters
	$(BIN)/python -m benchmarks.structured

# The site of the docs, in build/site. A link that leads nowhere is an error.
docs: $(STAMP)
	$(INSTALL) --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist benchmarks/data benchmarks/envs

$(DEMO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first that knows groups
	$(INSTALL) torch
	$(INSTALL) --editable '.[torch]' --group demo
	touch $(DEMO)

$(STAMP): $(DEMO)
	$(INSTALL) --editable '.[torch]' --group dev
	touch $(STAMP)
