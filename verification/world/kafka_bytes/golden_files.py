"""Kafka's own log directories in tests/golden, and what Kafka's reader and dump tool say of them."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from verification.world.checkout import ROOT

GOLDEN = ROOT / "tests" / "golden"

# Directories that Kafka closed cleanly, magic 2, below tests/golden. `expected_records` and the rest take these names.
CLEAN_DIRECTORIES = [
    "plain-0",
    "gzip-0",
    "snappy-0",
    "lz4-0",
    "zstd-0",
    "mixed-0",
    "canary-0",
    "canary300-0",
    "canary300full-0",
    "canary300dense-0",
    "multiappend-0",
    "logappend-0",
    "outoforder-0",
    "txn-0",
    *(f"latest-price/before-clean{step}/latest-price-0" for step in ("", "-2", "-3", "-4")),
    *(f"latest-price/after-clean{step}/latest-price-0" for step in ("-1", "-2", "-3", "-4")),
    *(
        f"bigcompact-{codec}/{step}/bigcompact-0"
        for codec in ("none", "zstd")
        for step in ("dirty", "clean-1", "dirty-2", "clean-2")
    ),
    *(f"txn-compact/dirty{step}/txnc-0" for step in ("", "-2", "-3", "-4")),
    *(f"txn-compact/clean{step}/txnc-0" for step in ("-1", "-2", "-3", "-4")),
    *(
        f"broker-data/{name}"
        for name in (
            "orders-0",
            "orders-1",
            "latest-0",
            "payments-0",
            "retention-0",
            "__consumer_offsets-0",
            "__consumer_offsets-1",
            "__transaction_state-0",
            "__transaction_state-1",
        )
    ),
]
# Directories of so many records that a test of each is slow. The others of their kind are read by the fast tests, too.
LARGE_DIRECTORIES = frozenset(
    f"bigcompact-{codec}/{step}/bigcompact-0"
    for codec, steps in (("none", ("dirty", "clean-1", "dirty-2", "clean-2")), ("zstd", ("dirty",)))
    for step in steps
)
LEGACY_DIRECTORIES = ["legacy-v0-0", "legacy-v1-0"]


def golden_dir(name: str) -> Path:
    """The directory itself, read-only by agreement: a test that writes copies it first."""
    path = GOLDEN / name
    assert path.is_dir(), path
    return path


def text(name: str, kind: str) -> str | None:
    """The text file `<name>.<kind>` beside a directory, or None where Kafka's tools gave none."""
    path = GOLDEN / f"{name}.{kind}.xz"
    return lzma.decompress(path.read_bytes()).decode() if path.exists() else None


def _lines(name: str, kind: str) -> list[dict]:
    content = text(name, kind)
    assert content is not None, f"{name}.{kind}"
    return [json.loads(line) for line in content.splitlines()]


@cache
def expected_records(name: str) -> list[dict]:
    """One dict a record, as Kafka's own reader gives it; key, value and header values are base64 or None."""
    return _lines(name, "expected.jsonl")


@cache
def expected_batches(name: str) -> list[dict]:
    """One dict a batch: segment, position, size, baseOffset, lastOffset, count, crc, deleteHorizonMs …"""
    return _lines(name, "batches.jsonl")


@cache
def queries(name: str) -> list[dict]:
    """Golden answers of UnifiedLog.fetchOffsetByTimestamp and UnifiedLog.read."""
    return _lines(name, "queries.jsonl")


def log_files(name: str) -> Iterator[Path]:
    """The .log files of a directory, by base offset."""
    return iter(sorted(golden_dir(name).glob("*.log")))


def damaged_dir(name: str, target: Path) -> Path:
    """Lays out damaged/<name>/plain-0 whole below `target` (plain-0 with the damage laid over it) and returns it."""
    directory = target / "plain-0"
    shutil.copytree(GOLDEN / "plain-0", directory)
    damage = GOLDEN / "damaged" / name
    for file in (damage / "plain-0").glob("*"):
        shutil.copy(file, directory / file.name)
    removed = damage / "removed.txt"
    if removed.exists():
        for file_name in removed.read_text().split():
            (directory / file_name).unlink()
    return directory
