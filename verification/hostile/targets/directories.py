"""Whole log directories: those of Kafka with hostile files and names, and topics whose rows have hostile values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from spark_segments.format.sidecars.checkpoints import leader_epochs_bytes, offsets_bytes, partition_metadata_bytes
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.log.findings import Findings
from spark_segments.log.reading.scan import Scan
from spark_segments.log.reading.scan_plan import Selection
from spark_segments.maintenance.verification.manifest_rows import check_files, check_rows
from spark_segments.storage import Storage
from verification.hostile.memory_files import storage_of
from verification.hostile.mutations import mutated, mutated_text
from verification.hostile.targets import Run
from verification.hostile.targets.batches import sealed
from verification.hostile.targets.sidecars import segment_files
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.manifest_rows import Partition, Segment, SegmentRows, Snapshot

_NAMES = ["..", "../x", "orders-99999999999", "orders-٣", "orders--1", "a/b-0", "%2e%2e-0", "x\0-0", "-0", "orders-00",
          "orders-0-delete", "orders-0.swap", "0" * 300]  # fmt: skip


def _read_all(storage: Storage, snapshot: Snapshot) -> None:
    for level in ("read_uncommitted", "read_committed"):
        for part in Scan.of(storage, snapshot, selection=Selection(isolation=level)).parts(4000):
            for batch in Scan.read(storage, [part]):
                batch.validate(full=True)


def kafka_directories() -> Run:
    files: dict[str, bytes] = {}
    for topic in ("txn-0", "legacy-v1-0"):
        for path in sorted(golden_dir(topic).iterdir()):
            if path.name.startswith(("0000000000000000000", "leader", "partition")) and path.stem <= f"{700:020d}~":
                files[f"{topic}/{path.name}"] = path.read_bytes()
    files |= {
        "cleaner-offset-checkpoint": offsets_bytes({("txn", 0): 17}),
        "log-start-offset-checkpoint": offsets_bytes({("txn", 0): 0, ("legacy-v1", 0): 3}),
        "txn-0/leader-epoch-checkpoint": leader_epochs_bytes([(0, 0)]),
        "txn-0/partition.metadata": partition_metadata_bytes("AAAAAAAAAAAAAAAAAAAAAQ"),
    }
    small = {path: data[:3000] if path.endswith(".log") else data for path, data in files.items()}

    def run(random: Random) -> None:
        changed = dict(small)
        path = random.choice(list(small))
        data = mutated(small[path], random, list(small.values()))
        changed[path] = sealed(data, random) if path.endswith(".log") and random.random() < 0.5 else data
        if random.random() < 0.2:
            old = random.choice(list(changed))
            directory, _, name = old.rpartition("/")
            new = f"{mutated_text(directory, random, _NAMES)}/{name}" if random.random() < 0.5 else (
                f"{directory}/{mutated_text(name, random, _NAMES)}"
            )  # fmt: skip
            changed[new.strip("/").replace("//", "/")] = changed.pop(old)
        storage = storage_of(changed)
        directory_of_kafka = KafkaDirectory(storage)
        for topic in directory_of_kafka.topics():
            _read_all(storage, directory_of_kafka.snapshot(topic))

    return run


_VALUES: list[Any] = [-(2**63), -(2**31), -1, 0, 1, 7, 61, 100, 4096, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1]
_PATHS = ["", "..", "../../etc/passwd", "/etc/passwd", "orders-0/../../x.log", "orders-0/x", "a\0.log", "%2e%2e/x.log",
          "orders-0/\u202e.log", "file:///etc/passwd", "s3://bucket/x.log", "orders-0//x.log", "."]  # fmt: skip


def values_of_rows() -> Run:
    """Rows that say anything of themselves: a plan, a read and a verification end with records or an error."""
    files, row, _ = segment_files(40)
    second = dataclasses.replace(row, base_offset=40, next_offset=80, file_base_offset=0, state="chunk")
    names = [field.name for field in dataclasses.fields(Segment)]
    numbers = [name for name in names if isinstance(getattr(row, name), int) and name != "partition"]
    changes: list[Callable[[Random, Segment], Segment]] = [
        lambda random, one: dataclasses.replace(one, **{random.choice(numbers): random.choice(_VALUES)}),
        lambda random, one: dataclasses.replace(
            one,
            **{
                name: min(getattr(one, name), 2**62) + random.choice((-1, 1, 3, 61))
                for name in random.sample(numbers, 2)
            },
        ),
        lambda random, one: dataclasses.replace(
            one, path=random.choice([*_PATHS, mutated_text(one.path, random, _PATHS)])
        ),
        lambda random, one: dataclasses.replace(
            one, byte_position=random.choice(_VALUES), index_position=random.choice(_VALUES)
        ),
        lambda random, one: dataclasses.replace(one, state=random.choice(("", "removed", "x", "chunk"))),
    ]

    def run(random: Random) -> None:
        rows = [row, second]
        at = random.randrange(2)
        for _ in range(random.randint(1, 3)):
            rows[at] = random.choice(changes)(random, rows[at])
        end = random.choice((80, 80, 80, random.choice(_VALUES)))
        partition = Partition("id", 0, random.choice((0, 0, random.choice(_VALUES))), end, 0, end)
        storage = storage_of(dict(files))
        snapshot = Snapshot("orders", 3, "id", {}, 0, Partition.table([partition]), SegmentRows(Segment.table(rows)))
        findings = Findings("orders")
        check_rows(snapshot, findings)
        check_files(snapshot, {info.path: info for info in storage.list("orders-0")}, findings, kept_since_ms=0)
        if not findings.found:
            _read_all(storage, snapshot)
            return
        try:
            _read_all(storage, snapshot)
        except FileNotFoundError:
            return

    return run
