# From nothing to a running demo: `make demo`.  From nothing to all tests: `make test`.
# Every target makes .venv and builds first, if that is not done yet; a second run does neither.
# How the C++ is compiled: setup.py.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.requirements
EDITABLE := $(VENV)/.editable
CXX_FILES = $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.c')
# Threads beyond the cores of a small machine only fight each other.
export OMP_NUM_THREADS ?= 2

.PHONY: demo test conformance build compile lint format sanitize bench clean distclean

demo: build
	$(PY) examples/train_digits.py

test: build
	$(MAKE) -C csrc/libsimdev test
	$(PY) -m pytest -q -m "not slow"

build: compile $(EDITABLE)

# Everything that takes long: all samples, dtypes and forms of every operator, second-order gradients, soak tests.
# Sweeps go on where they stopped; delete build/conformance to start anew.
DTYPES := float32 float64 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128 bool \
	int8 int16 int32 int64 uint8 uint16 uint32 uint64
conformance: build
	mkdir -p build/conformance
	for dtype in $(DTYPES); do \
		samples=$$([ $$dtype = float32 ] || echo "--samples 5"); \
		$(PY) -m tests.conformance.sweep --dtype $$dtype $$samples --backward \
			--out build/conformance/$$dtype.json || failed=1; \
	done; [ -z "$$failed" ]
	$(PY) -m tests.conformance.sweep --check compiled --out build/conformance/compiled.json
	$(PY) -m pytest -q -m slow

# Incremental: compiles what changed and returns within a second if nothing did.
compile: $(INSTALLED)
	@$(PY) setup.py -q build_ext --inplace

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

format: $(INSTALLED)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(CXX_FILES)

# libsimdev's own tests under AddressSanitizer and ThreadSanitizer.
sanitize:
	$(MAKE) -C csrc/libsimdev sanitize

bench: build
	$(PY) benchmarks/eager.py

$(INSTALLED): requirements.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

# Makes torch_simdev importable from this tree and registers its entry points.
$(EDITABLE): $(INSTALLED) pyproject.toml | compile
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
		--config-settings editable_mode=compat --editable .
	touch $@

clean:
	rm -rf build dist *.egg-info torch_simdev/lib torch_simdev/include torch_simdev/_build_info.py
	rm -f torch_simdev/_C*.so $(EDITABLE)

distclean: clean
	rm -rf $(VENV)
