# Everything that a change has to pass, by the Python of this environment: make PYTHON=.venv/bin/python test
PYTHON ?= python

# A thousand processes of the tests import the package: its byte code is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: all install kernels wheels sanitize lint types collect fast test proof docs bench bench-compare release-check
all: kernels
	$(MAKE) -j 2 types collect lint docs
	$(MAKE) test

# uv takes two fifths of pip's time. It reads none of pip's settings: where only those name the index, pip installs.
install:  ## this checkout and all that its tests need, in the environment of PYTHON
	$(PYTHON) -m pip install -q 'uv>=0.11,<0.14'
	$(PYTHON) -m uv pip install -q --compile-bytecode -e '.[dev,docs,jdk]' || $(PYTHON) -m pip install -q -e '.[dev,docs,jdk]'

kernels:  ## compiles the kernels that are older than their sources, in place
	$(PYTHON) hatch_build.py

# Machine and C library that the wheels are for; ziglang compiles for all of them on any machine.
TARGETS = x86_64-linux-gnu x86_64-linux-musl aarch64-linux-gnu aarch64-linux-musl

wheels:  ## the wheels of a release, in dist/
	for target in $(TARGETS); do SEGMENTS_TARGET=$$target $(PYTHON) -m build --wheel || exit 1; done

sanitize:  ## golden and hostile inputs with the sanitizers of gcc in the kernels
	$(PYTHON) -m verification.hostile.sanitized

lint:  ## style, formatting, and the borders between rooms
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())' --no-cache

types:  ## mypy, strict, on the package
	$(PYTHON) -m mypy

# While mypy has the other core: a process compiles the tests in 20 s, and each of `make test` would do it by itself.
collect:  ## finds all tests and keeps their byte code
	$(PYTHON) -m pytest --collect-only -qq | sed '/^tests.*: [0-9]*$$/d'

fast:  ## the tests that need no Spark and no network, but for the proofs
	$(PYTHON) -m pytest -m "not spark and not network and not proof" -n 2 --dist loadgroup

# A third process, for those with Spark wait more than they work.
test:  ## all tests but the proofs: those with Spark share one process and its session, the others go beside them
	$(PYTHON) -m pytest -m "not proof" -n 3 --dist loadgroup

proof: kernels  ## before a release: tests of every case, kill, large directory, wheel and example; many random ones
	$(PYTHON) -m pytest -m "proof or hypothesis" --hypothesis-profile=proof -n 3 --dist loadgroup

release-check:  ## all that a release needs on this machine, and what it could not do: needs the extra `release`
	$(PYTHON) -m verification.release

docs:  ## the site, in site/
	$(PYTHON) -m mkdocs build --strict --quiet

bench:  ## the figures of benchmarks/README.md, an hour
	$(PYTHON) -m benchmarks codec
	$(PYTHON) -m benchmarks compact
	$(PYTHON) -m benchmarks spark
	$(PYTHON) -m benchmarks copy
	$(PYTHON) -m benchmarks mirror
	$(PYTHON) -m benchmarks plan

bench-compare:  ## this tree against another commit, in turns, ten minutes: make bench-compare REV=main
	$(PYTHON) -m benchmarks compare --rev $(REV)
