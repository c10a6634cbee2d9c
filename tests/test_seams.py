"""What tests take from inside the package, and what they change there: no more than it says here.

A test plays a failing world through three seams: a `FileSystem` for `Storage`, a `DeltaLog` or `OpenTable` for the
manifest, and a clock. CONTRIBUTING says what changes something else, and why; this list holds how often.
"""

from __future__ import annotations

import ast
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.small_limits import LIMITS

TESTS = ROOT / "tests"

FACES = ("spark_segments", *(f"spark_segments.{name}" for name in ("errors", "maintenance", "kafka_protocol")))
FACES += tuple(f"spark_segments.{name}" for name in ("polars", "duckdb", "values", "storage", "config", "cli"))
FACES += ("spark_segments.log.dump",)

INNER: dict[str, int] = {
    ".": 46,
    "cli": 35,
    "config": 1,
    "format": 150,
    "hostile": 68,
    "kafka_protocol": 45,
    "log": 107,
    "maintenance": 79,
    "protocol": 2,
    "simulation": 53,
    "spark": 46,
    "values": 45,
}
"""How many statements of a folder import from the inside of the package."""

PATCHES: dict[str, int] = {
    "cli/test_page_served.py": 1,
    "clock.py": 2,
    "faults/test_clock.py": 1,
    "format/test_cleaner_kernels.py": 3,
    "format/test_encode_sizes.py": 1,
    "format/test_legacy_kernels.py": 3,
    "format/test_uncompiled.py": 2,
    "hostile/test_found.py": 1,
    "hostile/test_hostile.py": 6,
    "kafka_protocol/test_capture.py": 3,
    "kafka_protocol/test_oauth_tokens.py": 1,
    "kafka_protocol/test_replay.py": 4,
    "log/commits/test_failures.py": 1,
    "log/manifest/test_upkeep.py": 1,
    "log/rebuild/test_loss.py": 1,
    "log/recovery/test_log_end.py": 1,
    "log/test_difference.py": 3,
    "log/test_fetch_ahead.py": 3,
    "log/test_isolation.py": 1,
    "log/test_missing_files.py": 4,
    "log/test_read_ahead.py": 1,
    "log/test_repeated_import.py": 2,
    "log/verification/test_faults.py": 2,
    "log/verification/test_report.py": 1,
    "maintenance/mirroring/test_checksums.py": 2,
    "maintenance/mirroring/test_copies.py": 1,
    "maintenance/mirroring/test_groups.py": 2,
    "maintenance/mirroring/test_mirror.py": 3,
    "maintenance/promotion/test_fences.py": 1,
    "maintenance/promotion/test_groups.py": 1,
    "maintenance/test_compact_spark.py": 2,
    "maintenance/test_delete_delay.py": 1,
    "maintenance/test_failures.py": 2,
    "maintenance/test_max_bytes.py": 2,
    "maintenance/test_restore.py": 2,
    "maintenance/test_roll.py": 1,
    "maintenance/test_round_tasks.py": 1,
    "maintenance/test_second_pass.py": 2,
    "maintenance/test_vacuum.py": 1,
    "simulation/broker/test_broker.py": 4,
    "simulation/test_simulation.py": 8,
    "small_limits.py": 2,
    "spark/streams/test_stream_reader.py": 2,
    "spark/test_session.py": 1,
    "test_duckdb.py": 1,
    "test_execution.py": 4,
    "test_polars.py": 1,
    "test_storage.py": 5,
    "values/test_avro_kernels.py": 4,
    "values/test_line_kernels.py": 1,
    "values/test_text_kernels.py": 2,
    "write_format_2.py": 1,
}
"""How often a module changes something of the package for a test."""

OF_THE_PROCESS = ("sys", "os", "ctypes", "tempfile", "subprocess", "logging")
"""What is no part of the package, or that a command line has of its process."""


def _modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield path.relative_to(TESTS), ast.parse(path.read_text())


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def _reaches_inside(node: ast.AST) -> bool:
    if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "spark_segments":
        return False
    module = str(node.module)
    names = [alias.name for alias in node.names if f"{module}.{alias.name}" not in FACES]
    return module not in FACES or any(_is_module(f"{module}.{name}") for name in names)


def _patches(node: ast.AST) -> bool:
    """Whether a call changes an attribute or a key of something that is not the process's own."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    called, target = ast.unparse(node.func), ast.unparse(node.args[0]).strip("'\"")
    is_patch = called.rpartition(".")[2] in ("setattr", "setitem", "delattr", "delitem") and "." in called
    is_patch |= called.startswith("mock.patch")
    return is_patch and target.partition(".")[0] not in OF_THE_PROCESS


def test_ever_less_is_imported_from_inside_the_package() -> None:
    found: Counter[str] = Counter()
    for path, tree in _modules():
        found[path.parts[0] if len(path.parts) > 1 else "."] += sum(map(_reaches_inside, ast.walk(tree)))
    more = {folder: count for folder, count in found.items() if count > INNER.get(folder, 0)}
    assert not more, f"of {INNER}: import it from the face, or from a module of tests that has it for all"


def test_ever_less_of_the_package_is_changed_for_a_test() -> None:
    found = {path.as_posix(): sum(map(_patches, ast.walk(tree))) for path, tree in _modules()}
    more = {path: count for path, count in found.items() if count > PATCHES.get(path, 0)}
    assert not more, f"of {PATCHES}: play it through one of the three seams, or a limit of tests/small_limits.py"


@pytest.mark.parametrize("name", ["tests/small_limits.py", "tests/clock.py", "tests/played_files.py"])
def test_contributing_names_the_modules_of_the_seams(name: str) -> None:
    assert f"`{name}`" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("place", [place for places in LIMITS.values() for place in places])
def test_every_limit_is_where_it_is_looked_for(place: str) -> None:
    name, _, key = f"spark_segments.{place}".partition(":")
    there = pkgutil.resolve_name(name)
    assert not key or key in there
