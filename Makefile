# make run: build everything and print one answer. make test: build everything and run the tests.
# A stamp in .venv marks each finished step, so that a second call skips it.
PYTHON ?= python3
PROMPT ?= Why is the sky blue?
ARGS ?=
PY := .venv/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check
RESULTS := bench/results
export CXX ?= g++

.PHONY: setup dev run test lint bench bench-e2e kernel-report gpu-check clean
setup: ssd/_C.so

# If PYTHON already has a CUDA build of torch, the virtual environment uses that one.
.venv/torch.done:
	@command -v $(firstword $(CXX)) >/dev/null || { echo "ssd needs a C++20 compiler: install g++ 12 or newer, or name one with CXX=" >&2; exit 1; }
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || { echo "ssd needs Python 3.10 to 3.13: name one with PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $$($(PYTHON) -c "import torch; print('--system-site-packages' * bool(torch.version.cuda))" 2>/dev/null) .venv
	$(PY) -c "import torch" 2>/dev/null || $(PIP) torch==2.13.0
	touch $@

.venv/setup.done: requirements.txt .venv/torch.done
	$(PIP) "setuptools>=70" wheel ninja -r requirements.txt
	touch $@

.venv/dev.done: requirements-dev.txt .venv/setup.done
	$(PIP) -r requirements-dev.txt
	touch $@

ssd/_C.so: .venv/setup.done setup.py $(shell find csrc -type f)
	@mkdir -p build; echo "compiling the kernels, which takes some minutes"
	@$(PY) setup.py -q build_ext --inplace > build/log 2>&1 || { cat build/log >&2; exit 1; }
	touch $@

dev: setup .venv/dev.done

run: setup
	$(PY) -m ssd.run "$(PROMPT)" $(ARGS)

test: dev
	$(PY) -m pytest $(ARGS)

lint: .venv/dev.done
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/clang-format --dry-run --Werror $$(git ls-files "*.h" "*.cpp" "*.cu" "*.cuh" "*.inl")

# Measures some of the named shapes, which takes minutes; ARGS=--full measures all, which takes hours on a CPU.
bench: dev
	$(PY) -m bench.roofline --json $(RESULTS)/roofline.json
	$(PY) -m bench.linear --json $(RESULTS)/linear.json $(ARGS)
	$(PY) -m bench.kernels --json $(RESULTS)/kernels.json $(ARGS)

# Compiles every GPU kernel for sm_80, sm_90 and sm_100. It needs Triton (.venv/bin/pip install triton), but no GPU.
kernel-report: dev
	$(PY) -m bench.kernel_report --json $(RESULTS)/kernel_report.json $(ARGS)

# On a machine with a GPU, builds, decodes in every mode, measures and tests within 9 minutes; a line says of each part
# whether it is ok. ARGS="--device cpu" runs small sizes here. It uses the existing environment, .venv or PYTHON.
gpu-check:
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) -m bench.gpu_check --out $(RESULTS)/gpu $(ARGS)

# The other systems are optional: .venv/bin/pip install -r bench/requirements.txt
bench-e2e: dev
	$(PY) -m bench.decode --limit 3 --max-tokens 96 --json $(RESULTS)/decode.json $(ARGS)

clean:
	rm -rf .venv build ssd/*.so *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
