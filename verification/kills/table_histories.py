"""python -m verification.kills.table_histories [--format iceberg] [--histories 200]: random histories of a topic and of
a table beside it, which two writers keep and other programs tidy. At each commit of a writer the table has the rows of
the topic. An erased key is in no file that the table names and, after a clean-up, in none at all.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate

from spark_segments import LogDir
from spark_segments.lake.table_format import TablePositions
from spark_segments.maintenance import compact, erase, restore, retain, roll
from verification.kills.as_one_rows import check_duckdb, check_polars
from verification.kills.table_rows import by_place, columns_of, content, iceberg_table, readable, rows_of, update
from verification.world.small_limits import small_limits
from verification.world.topics import append

DAY_MS = 86_400_000
TYPED = {"key.format": "json", "key.schema": "id int", "key.errors": "null"}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "by day": {"partition_by": "day"},
    "latest": {"view": "latest"},
    "archive": {"archive": True},
    "archive by day": {"archive": True, "partition_by": "day"},
    "typed latest": {"view": "latest", "formats": TYPED},
    "typed archive": {"archive": True, "formats": TYPED},
    "typed archive by day": {"archive": True, "formats": TYPED, "partition_by": "day"},
}
STEPS = 12
KEYS = [f"key-{number:04d}".encode() for number in range(12)]
TYPED_KEYS = [*(b'{"id":%d}' % n for n in range(5)), *(b'{"id":%d,"tenant":"x"}' % n for n in range(5)), b"bad", b"0"]
"""Each number twice, and keys that are no such object: alike in the column key, and told apart by their bytes."""

Rows = list[dict[str, Any]]


class DeltaSide:
    """A Delta table as delta-rs has it, and what other programs do to it."""

    def __init__(self, uri: str, key: str) -> None:
        self.uri, self.key, self._seen = uri, key, -1

    def commits(self) -> list[tuple[int, TablePositions]]:
        """Those that have come since the last call, each with the positions that it says."""
        first, self._seen = self._seen + 1, DeltaTable(self.uri).version()
        found = []
        for version in range(first, self._seen + 1):
            lines = Path(self.uri, f"_delta_log/{version:020d}.json").read_text().splitlines()
            (info,) = (action["commitInfo"] for action in map(json.loads, lines) if "commitInfo" in action)
            found.append((version, TablePositions.from_json(info.get("userMetadata", ""))))
        return [(version, position) for version, position in found if position is not None]

    def rows(self, version: int) -> Rows:
        table = DeltaTable(self.uri, version=version).to_pyarrow_table(columns=columns_of(self.key))
        return rows_of(table, self.key)

    def files(self) -> list[str]:
        return [uri.removeprefix("file://") for uri in DeltaTable(self.uri).file_uris()]

    def back_to(self, version: int) -> None:
        if version < DeltaTable(self.uri).version():
            DeltaTable(self.uri).restore(version)

    def tidy(self, choose: random.Random) -> None:
        table = DeltaTable(self.uri)
        choose.choice([table.optimize.compact, lambda: table.optimize.z_order([self.key]), table.create_checkpoint])()

    def clean(self) -> None:
        DeltaTable(self.uri).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)


class IcebergSide:
    """An Iceberg table as pyiceberg has it, and what other programs do to it."""

    def __init__(self, uri: str, key: str) -> None:
        self.uri, self.key, self._seen = uri, key, {-1}

    def commits(self) -> list[tuple[int, TablePositions]]:
        table, found = iceberg_table(self.uri), []
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id not in self._seen:
            self._seen.add(snapshot.snapshot_id)
            said = snapshot.summary.additional_properties.get("segments.position", "")
            found.insert(0, (snapshot.snapshot_id, TablePositions.from_json(said)))
            snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id or -1)
        return [(version, position) for version, position in found if position is not None]

    def rows(self, version: int) -> Rows:
        scan = iceberg_table(self.uri).scan(snapshot_id=version, selected_fields=tuple(columns_of(self.key)))
        return rows_of(scan.to_arrow(), self.key)

    def files(self) -> list[str]:
        tasks = iceberg_table(self.uri).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]

    def back_to(self, version: int) -> None:
        iceberg_table(self.uri).manage_snapshots().rollback_to_snapshot(version).commit()

    def tidy(self, choose: random.Random) -> None:
        if iceberg_table(self.uri).current_snapshot() is not None:
            rewrite(self.uri, self.key)

    def clean(self) -> None:
        """Expires all snapshots but the last, and removes the files that no snapshot names."""
        table = iceberg_table(self.uri)
        last = table.current_snapshot()
        table.maintenance.expire_snapshots().by_ids(
            [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot != last]
        ).commit()
        manifests = last.manifests(table.io)
        entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
        named = {table.metadata_location, last.manifest_list, *(manifest.manifest_path for manifest in manifests)}
        named |= {entry.data_file.file_path for entry in entries}
        named |= {log.metadata_file for log in table.metadata.metadata_log}
        named = {path.removeprefix("file://") for path in named}
        for path in Path(self.uri).rglob("*"):
            if path.is_file() and str(path) not in named:
                path.unlink()


class _Replacing:
    """A catalog in which a commit has the operation `replace`, for which pyiceberg has no function."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Table, requirements: Any, updates: Iterable[Any]) -> Any:
        return self._catalog.commit_table(table, requirements, tuple(map(self._replacing, updates)))

    def _replacing(self, change: Any) -> Any:
        if not isinstance(change, AddSnapshotUpdate):
            return change
        summary = Summary(Operation.REPLACE, **change.snapshot.summary.additional_properties)
        return change.model_copy(update={"snapshot": change.snapshot.model_copy(update={"summary": summary})})


def rewrite(uri: str, key: str = "key") -> None:
    """Rewrites the files of an Iceberg table: one for each of its partitions, with bounds of the column `key`."""
    table = iceberg_table(uri)
    table.catalog = _Replacing(table.catalog)
    partitions: dict[Any, list[DataFile]] = {}
    for task in table.scan().plan_files():
        partitions.setdefault(task.file.partition, []).append(task.file)
    change = table.transaction()
    with change.update_snapshot().overwrite() as snapshot:
        for partition, files in partitions.items():
            rows = pa.concat_tables([pq.read_table(file.file_path) for file in files], promote_options="permissive")
            path = f"{uri}/data/{uuid.uuid4()}.parquet"
            Path(path).parent.mkdir(exist_ok=True)
            pq.write_table(rows, path)
            field_id = table.schema().find_field(key).field_id
            keys = [text for text in rows[key].to_pylist() if text is not None] or [b""]
            for file in files:
                snapshot.delete_data_file(file)
            snapshot.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, partition=partition,
                    record_count=len(rows), file_size_in_bytes=Path(path).stat().st_size, spec_id=table.spec().spec_id,
                    lower_bounds={field_id: min(keys)}, upper_bounds={field_id: max(keys)},
                )
            )  # fmt: skip
    change.commit_transaction()


class History:
    """A topic, a table beside it, and what the table is to have."""

    def __init__(self, directory: Path, table_format: str, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.kind = choose.choice([*KINDS])
        self.is_archive = "archive" in self.kind
        self.key = "key_bytes" if "typed" in self.kind else "key"
        self.keys = TYPED_KEYS if "typed" in self.kind else KEYS
        self.directory = directory / table_format
        self.log = LogDir.create(str(directory / "log"))
        self.counts: Counter[str] = Counter()
        self.erased: set[bytes] = set()
        self.config = {
            "cleanup.policy": choose.choice(["delete", "compact", "compact,delete"]),
            "min.cleanable.dirty.ratio": "0",
            "segment.bytes": str(choose.choice([1 << 20, 2000])),
        }
        self._create()

    def _create(self) -> None:
        self.log.create_topic("orders", partitions=self.choose.choice([1, 3]), config=self.config)
        self.oldest = self.log.topic("orders").snapshot.version
        self.erased.clear()
        if self.is_archive or not hasattr(self, "uri"):  # an archive follows one topic
            self.uri = str(self.directory / f"table-{uuid.uuid4().hex[:6]}")
            self.side = (IcebergSide if self.directory.name == "iceberg" else DeltaSide)(self.uri, self.key)
            self.named: set[bytes] = set()  # the keys that the archive has lost
            self.before: set[tuple[int, int]] = set()  # places of records of before an erasure of their key
            self.kept: dict[tuple[int, int], dict[str, Any]] = {}
            self.reached: dict[int, int] = {}
            self.back: dict[int, tuple[dict, dict]] = {}  # the commits that a table may be taken back to
            self.update()

    # What the table is to have

    def expected(self) -> Rows:
        if not self.is_archive:
            return readable(self.log, view=KINDS[self.kind].get("view"))
        return by_place(self.kept.values())

    def _keep(self, keys: Iterable[bytes], *, forget: bool) -> None:
        """What came after the erasure of its key stays, also when that leaves the topic by retention."""
        there = {(row["partition"], row["offset"]): row for row in readable(self.log)}
        self.kept = {
            place: row
            for place, row in self.kept.items()
            if place in there or row["key"] not in keys or (place not in self.before and not forget)
        }
        news = {place: row for place, row in there.items() if place[1] >= self.reached.get(place[0], 0)}
        self.kept |= news
        self.reached = {number: end for number, (_, end) in self.log.topic("orders").offsets().items()}

    # Steps

    def update(self, keys: Iterable[bytes] = (), **options: Any) -> None:
        """Brings the table in step, at times with another writer in between, and compares each commit."""
        others = [1] if self.choose.random() < 0.3 else []

        def progress(done: int, tasks: int) -> None:
            if others:
                others.pop()
                update(self.log, self.uri, **KINDS[self.kind], keys=keys, **options)
                self.counts["writers in between"] += 1

        with small_limits(TABLE_PART_BYTES=1, TABLE_WAVE_BYTES=self.choose.choice([1, 1 << 30])):
            update(self.log, self.uri, **KINDS[self.kind], keys=keys, **options, progress=progress)
        if self.is_archive:
            self._keep(keys, forget=bool(options.get("forget")))
        rows = self.expected()
        for version, position in self.side.commits():
            expected = rows
            if "latest" not in self.kind:
                expected = [row for row in rows if row["offset"] < position.end(row["partition"])]
            assert by_place(self.side.rows(version)) == expected, f"commit {version} of the table"
            self.back[version] = (dict(self.kept), dict(self.reached))
            self.counts["commits"] += 1
        assert self.now() == rows, "the table"
        self.check_erased(self.side.files())

    def now(self) -> Rows:
        """The rows of the table's newest version."""
        return content(self.uri, self.key)

    def check_erased(self, files: Iterable[str | Path]) -> None:
        gone = self.erased - {row["key"] for row in self.expected()}
        for file in files:
            assert gone.isdisjoint(pq.read_table(file, columns=[self.key]).column(self.key).to_pylist()), file
            self.counts["files without erased keys"] += bool(gone)

    def append(self) -> None:
        pairs = [
            (self.choose.choice(self.keys), self.choose.choice([None, b"", b"%d" % self.choose.randrange(99)]))
            for _ in range(self.choose.choice([1, 3, 20]))
        ]
        times = [self.choose.randrange(3) * DAY_MS + self.log.storage.now_ms() for _ in pairs]
        append(self.log, *pairs, timestamp=pa.array(times, pa.timestamp("ms", "UTC")))
        self.erased.difference_update(key for key, _ in pairs)

    def clean(self) -> None:
        later_ms = self.log.storage.now_ms() + 30 * DAY_MS
        roll(self.log, now_ms=later_ms)
        compact(self.log, now_ms=later_ms)

    def delete_records(self) -> None:
        if "delete" not in self.config["cleanup.policy"]:
            return
        ends = self.log.topic("orders").offsets()
        self.log.topic("orders").delete_records(
            {number: self.choose.randint(start, end) for number, (start, end) in ends.items()}
        )

    def retain(self) -> None:
        retain(self.log, now_ms=self.log.storage.now_ms() + 20 * DAY_MS)

    def erase(self) -> None:
        keys = self.choose.sample(self.keys, 2)
        if self.is_archive:
            self.update()
            if "delete" in self.config["cleanup.policy"] and self.choose.random() < 0.5:  # all records leave
                later_ms = self.log.storage.now_ms() + 30 * DAY_MS
                roll(self.log, now_ms=later_ms)
                retain(self.log, now_ms=later_ms)
            topic = {row["key"] for row in readable(self.log)}
            if left := sorted({row["key"] for row in self.kept.values()} - topic):
                keys = self.choose.choice([keys, self.choose.sample(left, min(2, len(left)))])
        self.before |= {place for place, row in self.kept.items() if row["key"] in keys}
        self.named.update(keys)
        before = self.log.topic("orders").snapshot.version
        erase(self.log, topics=["orders"], keys=keys)
        self.oldest = self.log.topic("orders").snapshot.version
        is_noted = self.oldest != before  # else the topic has none of them any more
        if not (is_noted or self.is_archive):
            return
        self.back.clear()
        self.erased.update(keys)
        if is_noted:
            if self.choose.random() < 0.5:
                self.append_keys(keys)
            self.update(keys if self.is_archive else ())
        else:
            self.counts["rows forgotten"] += sum(row["key"] in keys for row in self.kept.values())
            self.update(keys, forget=True)
        self.counts["erasures" if is_noted else "erasures of what had left"] += 1

    def append_keys(self, keys: Iterable[bytes]) -> None:
        """Records of keys that were erased a moment ago."""
        append(self.log, *((key, b"new") for key in keys))
        self.erased.difference_update(keys)
        self.counts["appends after an erasure"] += 1

    def name_again(self) -> None:
        """The keys of earlier erasures are named once more, when their newer records may have left the topic."""
        if self.is_archive and self.named:
            self.retain()
            self.update(self.choose.sample(sorted(self.named), 1))
            self.counts["keys named again"] += 1

    def restore(self) -> None:
        version = self.choose.randint(self.oldest, self.log.topic("orders").snapshot.version)
        restore(self.log, topics=["orders"], version=version)

    def create_again(self) -> None:
        self.log.delete_topic("orders")
        self._create()

    def add_partitions(self) -> None:
        self.log.topic("orders").alter(partitions=len(self.log.topic("orders").offsets()) + 1)

    def others_tidy(self) -> None:
        self.side.tidy(self.choose)
        self.counts["tidied by others"] += 1

    def others_take_back(self) -> None:
        if len(self.back) > 1:
            version = self.choose.choice([*self.back])
            self.side.back_to(version)
            self.kept, self.reached = self.back[version]
            self.back = {one: state for one, state in self.back.items() if one <= version or not self.is_archive}
            self.counts["taken back by others"] += 1
            self.update()
            self.back.clear()  # of Iceberg's snapshots only ancestors can be gone back to

    def others_clean(self) -> None:
        if Path(self.uri).exists() and self.side.files():
            self.update()
            if self.choose.random() < 0.5:  # no run sees the files that were rewritten before others' clean-up
                self.others_tidy()
            self.side.clean()
            self.back.clear()
            self.check_erased(path for path in Path(self.uri).rglob("*.parquet") if path.parent.name != "_delta_log")
            assert self.now() == self.expected()
            self.counts["cleaned by others"] += 1

    def run(self) -> Counter[str]:
        often = [self.append] * 6 + [self.update] * 4 + [self.others_tidy] * 2
        seldom = [self.clean, self.delete_records, self.retain, self.erase, self.restore, self.create_again]
        seldom += [self.name_again, self.add_partitions, self.others_take_back, self.others_clean]
        for _ in range(STEPS):
            step = self.choose.choice([*often, *seldom])
            step()
            reads_table = check_duckdb(self.log)
            by_polars = check_polars(self.log)
            # DuckDB leaves out a file that has no row from the log starts on.
            assert all(by_polars[kind] for kind, is_table in reads_table.items() if is_table)
            for (view, isolation), is_table in reads_table.items():
                self.counts[f"{view or 'all records'}, {isolation}, by {'a table' if is_table else 'the log'}"] += 1
            self.counts["steps"] += 1
        self.erase()
        self.others_clean()
        return self.counts


def run(histories: int, table_format: str, seed: int) -> Counter[str]:
    """Raises AssertionError, which names the seed of a history, where a table is not as it has to be."""
    counts: Counter[str] = Counter()
    for number in range(seed, seed + histories):
        with tempfile.TemporaryDirectory() as directory:
            history = None
            try:
                history = History(Path(directory), table_format, number)
                counts += history.run()
            except Exception as error:
                raise AssertionError(f"{table_format}, seed {number}, {history and history.kind}: {error!r}") from error
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--format", choices=["delta", "iceberg"], default="iceberg")
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for door in ("duckdb.topic_database", "polars.scan"):  # they say each time that a topic is read by its log alone
        logging.getLogger(f"spark_segments.{door}").setLevel(logging.ERROR)
    counts = run(arguments.histories, arguments.format, arguments.seed)
    print(f"{arguments.histories} histories of {arguments.format}: {dict(counts)}")


if __name__ == "__main__":
    main()
