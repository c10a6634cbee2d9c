"""python -m verification.hostile.sanitized: kernels with the compiler's address and undefined-behaviour sanitizers,
over golden and hostile inputs. The first access out of bounds, or the first undefined operation, ends the process with
a report.

The libraries lie in a copy of this checkout, build/sanitized, since Python finds them beside their modules. It needs
gcc and its runtime of the sanitizers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build" / "sanitized"
COMPILER = "gcc -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
TESTS = [
    "tests/format/test_batches.py",
    "tests/format/test_clean.py",
    "tests/format/test_clean_any_bytes.py",
    "tests/format/test_clean_golden.py",
    "tests/format/test_compression.py",
    "tests/format/test_crc32c.py",
    "tests/format/test_decode.py",
    "tests/format/test_encode.py",
    "tests/format/test_key_hash.py",
    "tests/format/test_legacy.py",
    "tests/format/test_live_records.py",
    "tests/format/test_lz4_and_snappy.py",
    "tests/format/test_many_batches.py",
    "tests/format/test_offset_map.py",
    "tests/format/test_upconvert.py",
    "tests/format/test_stated_sizes.py",
    "tests/values/test_avro.py",
    "tests/values/test_text_kernels.py",
]
TARGETS = ["decoder", "codecs", "message sets", "cleaner", "lines"]


def copied() -> None:
    """The checkout's Python, with libraries that are made anew."""
    os.environ["CC"] = COMPILER
    import hatch_build  # takes the compiler that is named by then

    libraries = {library.relative_to(COPY) for library in hatch_build.build(COPY)}
    for name in ("spark_segments", "tests", "verification"):
        shutil.copytree(ROOT / name, COPY / name, ignore=_not_copied, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", COPY)
    golden = COPY / "tests" / "golden"
    if not golden.exists():
        golden.symlink_to(ROOT / "tests" / "golden")
    assert all((COPY / library).exists() for library in libraries)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name.endswith((".so", ".nbi", ".nbc")) or name in ("__pycache__", "golden")}


def run(command: list[str]) -> None:
    """Runs a module of the copy. Raises CalledProcessError for what the sanitizers or the tests find."""
    runtime = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    environment = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python frees little at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONPATH": str(COPY),
    }
    subprocess.run([sys.executable, "-m", *command], cwd=COPY, env=environment, check=True)


def hostile(inputs: int) -> None:
    """Runs inputs of `verification.hostile` in this process. Its children bound their addresses: too few for a
    sanitizer.
    """
    from spark_segments.errors import SegmentsError
    from verification.hostile.child import Share, random_of
    from verification.hostile.targets import prepared

    for name in TARGETS:
        target, share = prepared(name), Share(name, 1, 0, 0)
        for number in range(inputs // len(TARGETS)):
            with contextlib.suppress(SegmentsError):
                target(random_of(share, number))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.hostile.sanitized", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="hostile inputs in all")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--within", action="store_true", help="run hostile inputs only, in this process")
    given = parser.parse_args()
    if given.within:
        hostile(given.inputs)
        return
    copied()
    if given.tests:
        run(["pytest", "-q", "-p", "no:cacheprovider", *given.tests])
    run(["verification.hostile.sanitized", "--within", "--inputs", str(given.inputs)])


if __name__ == "__main__":
    main()
