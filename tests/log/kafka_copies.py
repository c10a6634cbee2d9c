"""Comparing a partition directory with a copy of it that came out of an import and an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.format.sidecars.checkpoints import (
    CLEANER_OFFSETS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSETS_FILE,
    PARTITION_METADATA_FILE,
    parse_leader_epochs,
    parse_offsets,
)
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.maintenance import Report
from verification.world.kafka_bytes.golden_files import GOLDEN, golden_dir


def topic_of(name: str) -> str:
    return golden_dir(name).name.rpartition("-")[0]


def kafka_directory_of(name: str) -> Path:
    """What is imported to get a golden directory: the directory with its checkpoints, where it has one of its own."""
    directory = golden_dir(name)
    return directory if directory.parent == GOLDEN else directory.parent


def import_golden(log: LogDir, name: str, **options: Any) -> Report:
    return log.import_kafka(str(kafka_directory_of(name)), topic_of(name), **options)


def files(directory: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(f"*{suffix}"))}


def assert_same_partition(theirs: Path, ours: Path) -> None:
    """.log files and the sidecars of sealed segments byte for byte; snapshots, epochs and the topic id in content."""
    logs = files(theirs, ".log")
    assert files(ours, ".log") == logs
    active = max(logs)
    for suffix in (".index", ".timeindex"):
        copied = files(ours, suffix)
        for name, content in files(theirs, suffix).items():
            if name.split(".")[0] == active.split(".")[0]:  # Kafka allocates it in full, and cuts it when it closes it
                assert content.removesuffix(bytes(len(content) - len(copied[name]))) == copied[name]
            else:
                assert copied[name] == content, name
    assert files(ours, ".txnindex") == {
        name: content for name, content in files(theirs, ".txnindex").items() if content
    }
    bases = {name.split(".")[0] for name in logs}
    copied_snapshots = files(ours, ".snapshot")
    for name, content in files(theirs, ".snapshot").items():
        if name.split(".")[0] in bases or name == max(files(theirs, ".snapshot")):
            expected = parse_producer_snapshot(content, path=name)
            assert parse_producer_snapshot(copied_snapshots[name], path=name) == expected, name
    assert epochs(ours) == epochs(theirs)
    if (theirs / PARTITION_METADATA_FILE).exists():
        assert (ours / PARTITION_METADATA_FILE).read_bytes() == (theirs / PARTITION_METADATA_FILE).read_bytes()


def epochs(directory: Path) -> Any:
    return parse_leader_epochs((directory / LEADER_EPOCHS_FILE).read_bytes(), path=LEADER_EPOCHS_FILE)


def assert_same_checkpoints(theirs: Path, ours: Path, topic: str) -> None:
    """The cleaner's and the log starts' checkpoints of a topic say the same."""
    for name in (CLEANER_OFFSETS_FILE, LOG_START_OFFSETS_FILE):
        assert offsets(ours / name, topic) == offsets(theirs / name, topic), name


def offsets(file: Path, topic: str | None = None) -> dict[tuple[str, int], int]:
    """The entries of a checkpoint file, of a topic or all. A cleaner's offset of 0 says as much as none."""
    if not file.exists():
        return {}
    entries = parse_offsets(file.read_bytes(), path=file.name)
    is_cleaner = file.name == CLEANER_OFFSETS_FILE
    return {at: offset for at, offset in entries.items() if topic in (None, at[0]) and not (is_cleaner and offset == 0)}
