"""Kernels' ground: varints against their rule in Python, loads and stores against `struct`, and the cache."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spark_segments
from spark_segments.format.kernels import cache, jit
from tests.format.twin import Bytes, DamageError
from tests.format.twin_encode import varint

SETTINGS = settings(max_examples=300, deadline=None)
EDGES = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**20, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("number", EDGES)
def test_varlongs_at_the_edges(number):
    out = np.zeros(10, np.uint8)
    size = jit.write_varlong(out, 0, number)
    assert out[:size].tobytes() == varint(number)
    assert jit.varlong_size(number) == size
    assert jit.read_varlong(out, 0, size) == (number, size)
    for end in range(size):
        assert jit.read_varlong(out, 0, end) == (0, -1)
    if -(2**31) <= number < 2**31:
        assert jit.read_varint(out, 0, size) == (number, size)


@pytest.mark.slow
@SETTINGS
@given(st.binary(max_size=12), st.integers(0, 12))
@example(b"\xff" * 12, 12)
@example(b"\xff\xff\xff\xff\x7f", 5)
@example(b"\xff" * 9 + b"\x7f", 10)
def test_any_bytes_read_as_the_twin_reads_them(data, end):
    end = min(end, len(data))
    view = jit.byte_view(data)
    for kernel, method in ((jit.read_varint, Bytes.varint), (jit.read_varlong, Bytes.varlong)):
        plain = Bytes(data[:end])
        try:
            expected = method(plain), end - len(plain)
        except DamageError:
            expected = 0, -1
        assert kernel(view, 0, end) == expected


@jit.njit
def _there_and_back(out, data, number):
    jit.store_i16(out, 1, number)
    jit.store_i32(out, 3, number)
    jit.store_i64(out, 7, number)
    jit.memcpy(out, 15, data, 2, 5)
    return jit.load_i16(out, 1), jit.load_i32(out, 3), jit.load_u32(out, 3), jit.load_i64(out, 7), jit.load_i8(out, 1)


@SETTINGS
@given(st.integers(-(2**63), 2**63 - 1))
def test_stores_are_big_endian_and_loads_read_them(number):
    out = np.zeros(20, np.uint8)
    raw = struct.pack(">q", number)
    numbers = _there_and_back(out, jit.byte_view(b"abcdefgh"), number)
    assert out.tobytes() == b"\0" + raw[-2:] + raw[-4:] + raw + b"cdefg"
    assert numbers == (*struct.unpack(">hiIq", raw[-2:] + raw[-4:] * 2 + raw), struct.unpack(">b", raw[-2:-1])[0])


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64, 96, 100, 127, 128, 129, 1000])
def test_short_copies_write_what_is_asked_and_at_most_the_slack_beyond(size):
    data = jit.byte_view(bytes(range(256)) * 5)
    for end in (size, size + 40, len(data)):
        out = np.full(size + jit.COPY_SLACK + 8, 0xEE, np.uint8)
        jit.copy_short(out, 0, data, 0, size, end)
        assert out[:size].tobytes() == data[:size].tobytes()
        assert (out[size + jit.COPY_SLACK :] == 0xEE).all()


def test_a_read_only_view_is_made_of_any_buffer():
    for buffer in (b"abc", bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)):
        view = jit.byte_view(buffer)
        assert (view.tobytes(), view.flags.writeable) == (b"abc", False)
    source = bytearray(b"abc")
    jit.byte_view(source)
    source[0] = 1  # the source itself stays writable


CHANGED = """
from {package}.low import low
from spark_segments.format.kernels.jit import njit

@njit
def high():
    return low()
"""


@pytest.mark.slow
def test_a_cached_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path):
    package = tmp_path / "kernels_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "high.py").write_text(CHANGED.format(package=package.name))
    for answer in (1, 2):
        (package / "low.py").write_text(
            f"from spark_segments.format.kernels.jit import njit\n\n@njit\ndef low():\n    return {answer}\n"
        )
        stamp = 1_700_000_000 + answer
        os.utime(package / "low.py", (stamp, stamp))
        assert _run(f"from {package.name}.high import high; print(high())", tmp_path) == str(answer)


TWO_KERNELS = """
from spark_segments.format.kernels.jit import njit

@njit
def low(number):
    return number + 1

@njit
def high(number):
    return low(number) + low(2)
"""


@pytest.mark.slow
def test_a_kernel_is_stored_with_what_it_calls_and_by_itself_where_python_calls_it(tmp_path):
    (tmp_path / "two.py").write_text(TWO_KERNELS)
    kernels = tmp_path / "kernels"
    for code, expected, stored in (
        ("import two; print(two.high(3))", "7", ["two.high"]),
        ("import two; print(two.high(3), two.high.stats.cache_hits.total())", "7 1", ["two.high"]),
        ("import two; print(two.low(3))", "4", ["two.high", "two.low"]),
    ):
        assert _run(code, tmp_path, NUMBA_CACHE_DIR=str(kernels)) == expected
        assert sorted(path.name.partition("-")[0] for path in kernels.rglob("*.nbc")) == stored


@pytest.mark.slow
def test_processes_that_need_a_kernel_at_the_same_moment_compile_it_once(tmp_path):
    (tmp_path / "two.py").write_text(TWO_KERNELS)
    code = "import two; two.high(3); print(two.high.stats.cache_misses.total())"

    def run(_: int) -> str:
        return _run(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kernels"))

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(run, range(3))) == ["0", "0", "1"]


def test_a_process_that_never_ends_to_compile_is_not_waited_for_without_end(tmp_path, monkeypatch):
    @jit.njit
    def stuck(number):
        return number + 1

    monkeypatch.setattr(cache, "LONGEST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(stuck._cache, "_cache_path", str(tmp_path))
    with open(tmp_path / f"{stuck._cache._impl.filename_base}.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert stuck(3) == 4


@pytest.mark.slow
def test_kernels_are_cached_in_a_private_directory_where_nothing_else_is_writable(tmp_path):
    (tmp_path / "alone.py").write_text(
        "from spark_segments.format.kernels.jit import njit\n\n@njit\ndef alone():\n    return 7\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    # Plain files where numba would make directories: neither beside the module nor in the home can it write.
    nowhere = tmp_path / "plain file"
    nowhere.touch()
    (tmp_path / "__pycache__").touch()
    environment = {"HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere), "TMPDIR": str(temporary)}
    assert _run("import alone; print(alone.alone())", tmp_path, **environment) == "7"
    (directory,) = temporary.glob("spark-segments-kernels-*")
    assert directory.stat().st_mode & 0o077 == 0
    assert list(directory.rglob("alone*.nbc"))


SIZE = (
    "from spark_segments.format.kernels.jit import varlong_size as f; print(f(300), sum(f.stats.cache_hits.values()))"
)


def _run(code: str, directory: Path, **environment: str) -> str:
    root = str(Path(spark_segments.__file__).parents[1])
    path = os.pathsep.join([str(directory), root])
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": path, **environment},
        cwd="/",  # where `-c` would find this checkout before the path
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
