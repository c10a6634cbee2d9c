"""Topics with records, and ways to lose their manifests."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa

from spark_segments import LogDir, ProducerOptions
from spark_segments.maintenance import roll, vacuum, verify
from spark_segments.maintenance.rebuild.rebuild import open_damaged as open_damaged
from spark_segments.maintenance.rebuild.rebuild import rebuild_manifest as rebuild_manifest
from verification.world.manifest_rows import forget_rows

TOPIC = "orders"
WEEKS_MS = 60 * 24 * 60 * 60 * 1000


def new_log(root: Path, partitions: int = 2, **config: str) -> LogDir:
    log = LogDir.create(str(root))
    log.create_topic(
        TOPIC, partitions=partitions, config={name.replace("_", "."): text for name, text in config.items()}
    )
    return log


def append(
    log: LogDir,
    first: int,
    count: int = 10,
    txn: tuple[str, int] | None = None,
    *,
    once: str | None = None,
    batch_bytes: int = 131072,
    keys: int = 1 << 30,
) -> None:
    """Records whose values are the numbers from `first` on, over all partitions, with so many different keys."""
    partitions = log.topic(TOPIC).snapshot.partitions.num_rows
    numbers = range(first, first + count)
    columns = {
        "key": pa.array([str(number % keys).encode() for number in numbers], pa.binary()),
        "value": pa.array([str(number).encode() for number in numbers], pa.binary()),
        "partition": pa.array([number % partitions for number in numbers], pa.int32()),
        "timestamp": pa.array([1_700_000_000_000_000 + number for number in numbers], pa.timestamp("us", "UTC")),
    }
    log.topic(TOPIC).append(pa.table(columns), txn=txn, once=once, options=ProducerOptions(batch_bytes=batch_bytes))


def copy(log: LogDir) -> int:
    """Writes a checkpoint with a recovery copy, and returns its version."""
    log.topic(TOPIC).manifest.merge_files()
    return log.topic(TOPIC).snapshot.version


def numbers(log: LogDir) -> list[int]:
    return sorted(
        int(value) for batch in log.topic(TOPIC).scan().batches() for value in batch.column("value").to_pylist()
    )


def records(log: LogDir) -> list[tuple[int, int, bytes]]:
    names = ("partition", "offset", "value")
    return [
        row
        for batch in log.topic(TOPIC).scan().batches()
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    ]


def again(log: LogDir) -> LogDir:
    """The log directory as another process opens it: without rows in memory."""
    forget_rows()
    return LogDir.open(log.uri)


def lose_manifest(log: LogDir) -> None:
    shutil.rmtree(Path(log.uri, "_manifest", TOPIC))


def lose_delta_log(log: LogDir) -> None:
    shutil.rmtree(Path(log.uri, "_manifest", TOPIC, "_delta_log"))


def commit_file(log: LogDir, version: int) -> Path:
    return Path(log.uri, "_manifest", TOPIC, "_delta_log", f"{version:020d}.json")


def files_of_the_log(log: LogDir) -> dict[str, str]:
    """{path: digest} of all files but those of manifest, copies and groups."""
    root = Path(log.uri)
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.relative_to(root).parts[0].startswith("_")
    }


def all_files(log: LogDir) -> dict[str, str]:
    root = Path(log.uri)
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def is_usable(log: LogDir) -> None:
    """Appends, reads, verifies, rolls and vacuums; then all records are still there."""
    log = again(log)
    assert verify(log, topics=[TOPIC], deep=True).findings == []
    before = numbers(log)
    append(log, 900, 6)
    roll(log, topics=[TOPIC], now_ms=log.storage.now_ms() + WEEKS_MS)
    assert not [line for line in vacuum(log, topics=[TOPIC]).to_dict()["partitions"] if "error" in line]
    vacuum(log, topics=[TOPIC], now_ms=log.storage.now_ms() + WEEKS_MS)
    log = again(log)
    assert numbers(log) == [*before, *range(900, 906)]
    assert verify(log, topics=[TOPIC], deep=True).findings == []


def forget_notes(log: LogDir) -> None:
    """Leaves what an older version of this package leaves: recovery copies that know of no notes."""
    directory = Path(log.uri, "_recovery", TOPIC)
    for path in [*directory.glob("*.note"), *directory.glob("*.made")]:
        path.unlink()
    for path in directory.glob("*.json"):
        index = json.loads(path.read_bytes())
        del index["notes"]
        path.write_text(json.dumps(index))


def notes(log: LogDir, suffix: str = "note") -> list[Path]:
    """The files of notes, or of marks (`made`), by version."""
    return sorted(Path(log.uri, "_recovery", TOPIC).glob(f"*.{suffix}"))
