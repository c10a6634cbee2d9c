"""The world of a history: a log directory with one topic, what lies beside it, and the model of all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.duckdb import TopicDatabase
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.storage import FileInfo, Storage
from verification.kafka_protocol.broker import running_broker
from verification.pairs.model import Partition, Place, Record, Seen, TopicModel
from verification.specification.specification_reader import ManagedLog
from verification.world.clock import played_time, store_clock
from verification.world.kafka_side import KafkaSide
from verification.world.manifest_rows import forget_rows

if TYPE_CHECKING:
    from verification.pairs.spark_readers import SparkSide

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

HEADER = "parity"
"""The name of the headers of the records that are appended here."""

Row = tuple[bytes | None, bytes | None, int]
"""Key, value, and how long before now its time is, in ms."""


class Clock:
    """The clock of the store and of this machine, which goes on when a history lets it.

    A file has the time that the clock had when the file was written.
    """

    def __init__(self) -> None:
        self._played_ms = time.time_ns() // 1_000_000
        self._moments = [(0, self._played_ms)]

    def now_ms(self) -> int:
        return self._played_ms

    def go_on(self, span_ms: int) -> None:
        self._played_ms += span_ms
        self._moments.append((_next_tick_ms(), self._played_ms))

    def time_ns(self) -> int:
        return self.now_ms() * 1_000_000

    def time(self) -> float:
        return self.now_ms() / 1000

    def monotonic(self) -> float:
        return time.monotonic() + (self._played_ms - self._moments[0][1]) / 1000

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        listed = Storage.list

        def files(storage: Storage, path: str = "", recursive: bool = False) -> list[FileInfo]:
            found = listed(storage, path, recursive)
            return [replace(file, mtime_ms=self._written_ms(file.mtime_ms)) for file in found]

        with store_clock(self.now_ms), mock.patch.object(Storage, "list", files), played_time("tables", self):
            yield

    def _written_ms(self, mtime_ms: int) -> int:
        return next(played_ms for real_ms, played_ms in reversed(self._moments) if real_ms <= mtime_ms)


def _next_tick_ms() -> int:
    """The time of a file that would be written now, in ms since 1970. No file that exists has it yet.

    Files get their times from the kernel's clock of ticks, which is some milliseconds late: by the exact clock, a file
    that is written just behind a moment would be older than the moment.
    """
    with tempfile.TemporaryFile(buffering=0) as file:
        begin_ms = _mtime_ms(file)
        while _mtime_ms(file) <= begin_ms:
            file.write(b".")
        return _mtime_ms(file)


def _mtime_ms(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_mtime_ns // 1_000_000


@dataclass
class Table:
    """A table beside the topic. `rows`: what it must have. `commits`: which commit wrote the row, of an archive.
    `erased`: the keys that were erased since it was made. `reached`: where an archive goes on. What a restore brings
    back below does not come.
    """

    uri: str
    kind: str
    rows: dict[Place, Record]
    commits: dict[Place, int] = field(default_factory=dict)
    erased: set[bytes] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taking:
    """A commit that took a file out of the log, and the operation that it names."""

    version: int
    operation: str


@dataclass
class SignedList:
    """A list of files that was signed. `ends`: {path of a .log: (partition, the offset behind its last)}, or None of a
    shared object. `version`: of the topic at the last look; `taken`: {path of a file that has left the log: the
    commit that took it}.
    """

    path: Path
    ends: dict[str, tuple[int, int] | None]
    version: int
    taken: dict[str, Taking] = field(default_factory=dict)

    def look(self, world: World) -> None:
        """Notes which files have left the log since the last look, by which commit, and which have come back."""
        version = world.log.topic(world.topic).version
        gone = self.ends.keys() - world.live_files().keys()
        self.taken = {path: taking for path, taking in self.taken.items() if path in gone}
        for each in range(self.version + 1, version + 1):
            left = gone - self.taken.keys() - world.live_files(each).keys()
            if left:
                self.taken |= dict.fromkeys(left, Taking(each, world.operation_of(each)))
        self.version = version


@dataclass
class Replayed:
    """A topic of a cluster, to which the topic is replayed. `rows`: what it must have, by partition and in order.
    `reached`: where the replay goes on, by partition.
    """

    topic: str
    rows: dict[int, list[Record]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)


@dataclass
class World:
    """`keys`: what the records are of, None among them. `kafka`: the broker from which the topic comes, if any, by
    imports or by captures. `captured_ms`: when the last capture had all; `is_late`: whether a capture of a compacted
    topic has come later than delete.retention.ms after it, None where that depends on when a capture notes that.
    """

    directory: Path
    clock: Clock
    chance: random.Random
    keys: tuple[bytes | None, ...]
    topic: str = "orders"
    formats: Mapping[str, str] = field(default_factory=dict)
    log: LogDir = field(init=False)
    model: TopicModel = field(init=False)
    kafka: KafkaSide | None = None
    is_captured: bool = False
    tables: dict[str, Table] = field(default_factory=dict)
    versions: dict[int, TopicModel] = field(default_factory=dict)
    first_version: int = -1
    follower: tuple[LogDir, dict[int, Seen]] | None = None
    fenced: LogDir | None = None
    copied: bool = False
    signed: SignedList | None = None
    captured_ms: int | None = None
    is_late: bool | None = False
    group: dict[int, int] | None = None
    has_own_records: bool = False
    has_unnamed_files: bool = False
    config: dict[str, str] = field(default_factory=dict)
    made: int = 0
    is_log_append_time: bool = False
    database: TopicDatabase | None = None
    spark: SparkSide | None = None
    replayed: Replayed | None = None
    _cluster: str | None = None
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.log = LogDir.create(str(self.directory / "log"))

    # The topic

    def create(self, policy: str, partitions: int, **config: str) -> None:
        """Makes the topic, and its model. Segments end after an hour, and jobs do all that they may."""
        settings = {
            "cleanup.policy": policy,
            "segment.ms": str(HOUR_MS),
            "retention.ms": str(30 * DAY_MS),
            "delete.retention.ms": str(DAY_MS),
            "min.cleanable.dirty.ratio": "0",
            "file.delete.delay.ms": str(HOUR_MS),
            **config,
        }
        self.log.create_topic(self.topic, partitions, settings)
        self.config = settings
        self.model = TopicModel(
            frozenset(policy.split(",")),
            int(settings["retention.ms"]),
            int(settings["delete.retention.ms"]),
            {number: Partition() for number in range(partitions)},
        )
        self.is_log_append_time = settings.get("message.timestamp.type") == "LogAppendTime"

    def partition_of(self, key: bytes | None) -> int:
        """Where a client of librdkafka puts a key; records without one go to the last partition."""
        count = len(self.model.partitions)
        return count - 1 if key is None else zlib.crc32(key) % count

    def rows(self, keys: Iterable[bytes | None], ages_ms: Iterable[int], *, tombstones: bool = False) -> list[Row]:
        """A row for each key. No two values are alike."""
        made = []
        for key, age_ms in zip(keys, ages_ms, strict=True):
            self.made += 1
            made.append((key, None if tombstones else b"%d" % self.made, age_ms))
        return made

    def keys_now(self) -> list[bytes | None]:
        """The keys that an append may have: a compacted topic takes none without one."""
        return [key for key in self.keys if key is not None or "compact" not in self.model.policy]

    def append(self, rows: list[Row], **options: Any) -> dict[int, list[Record]]:
        """Appends rows, and returns the records by partition, in order."""
        placed, table = self.placed(rows), self.as_table(rows)
        table = table.append_column("headers", pa.array(map(headers_of, rows), HEADERS_TYPE))
        self.log.topic(self.topic).append(table, **options)
        self.has_own_records = True
        return placed

    def placed(self, rows: list[Row]) -> dict[int, list[Record]]:
        """The records that rows become, by partition and in order."""
        now_ms = self.clock.now_ms()
        placed: dict[int, list[Record]] = {}
        for key, value, age_ms in rows:
            time_ms = now_ms - (0 if self.is_log_append_time else age_ms)
            placed.setdefault(self.partition_of(key), []).append(Record(key, value, time_ms))
        return placed

    def as_table(self, rows: list[Row]) -> pa.Table:
        """The columns that are appended."""
        now_ms = self.clock.now_ms()
        return pa.table(
            {
                "key": pa.array([key for key, _, _ in rows], pa.binary()),
                "value": pa.array([value for _, value, _ in rows], pa.binary()),
                "timestamp": pa.array([now_ms - age_ms for _, _, age_ms in rows], pa.timestamp("ms", "UTC")),
                "partition": pa.array([self.partition_of(key) for key, _, _ in rows], pa.int32()),
            }
        )

    def forget_versions(self) -> None:
        """Nobody goes back to a version from before this."""
        self.versions.clear()
        self.first_version = -1

    # What is there

    def seen(self, log: LogDir | None = None) -> dict[int, Seen]:
        """What the reader of the specification sees, which shares no code with the package."""
        reader = ManagedLog(Path((log or self.log).uri))
        snapshot = reader.snapshot(self.topic)
        return {
            number: Seen(
                row["log_start_offset"],
                row["log_end_offset"],
                {
                    record.offset: Record(record.key, record.value, record.timestamp)
                    for record in reader.records(snapshot, number)
                },
            )
            for number, row in snapshot.partitions.items()
        }

    def markers(self) -> dict[Place, Record]:
        """The control records that the reader of the specification sees."""
        reader = ManagedLog(Path(self.log.uri))
        snapshot, found = reader.snapshot(self.topic), {}
        for number in snapshot.partitions:
            data = {record.offset for record in reader.records(snapshot, number)}
            for record in reader.records(snapshot, number, control=True):
                if record.offset not in data:
                    found[number, record.offset] = Record(record.key, record.value, record.timestamp)
        return found

    def states(self) -> dict[str, str]:
        """What the topic's row remembers."""
        return dict(ManagedLog(Path(self.log.uri)).snapshot(self.topic).topic["states"] or {})

    def live_files(self, version: int | None = None) -> dict[str, tuple[int, int] | None]:
        """The files that a version names, or the newest: of each path (partition, the offset behind its last), or None
        of a shared object.
        """
        snapshot = ManagedLog(Path(self.log.uri)).snapshot(self.topic, version)
        rows = [row for rows in snapshot.segments.values() for row in rows]
        return {
            row["path"]: None if row["index_position"] is not None else (row["partition"], row["next_offset"])
            for row in rows
        }

    def operation_of(self, version: int) -> str:
        """The operation that a commit names."""
        [operation] = [action["commitInfo"]["change"] for action in self._actions(version) if "commitInfo" in action]
        return str(operation)

    def written_out_of_log(self, version: int) -> set[str] | None:
        """The paths of rows that a commit wrote and that are out of the log: of what it took, and of what had left
        before, where it wrote such rows again. None where vacuum has taken the commit or its rows.
        """
        try:
            actions = self._actions(version)
            paths = [unquote(action["add"]["path"]) for action in actions if "add" in action]
            files = [self._table / path for path in paths if path.startswith("kind=segment/")]
            rows = [row for file in files for row in pq.ParquetFile(file).read(["path", "state"]).to_pylist()]
        except FileNotFoundError:
            return None
        return {row["path"] for row in rows if row["state"] in ("removed", "deleting")}

    @property
    def _table(self) -> Path:
        return Path(self.log.uri, "_manifest", self.topic)

    def _actions(self, version: int) -> list[dict[str, Any]]:
        commit = self._table / "_delta_log" / f"{version:020d}.json"
        return [json.loads(line) for line in commit.read_text().splitlines()]

    def reopen(self, uri: str | None = None) -> None:
        """The log directory as a process sees it that has just begun."""
        forget_rows()
        self.use(LogDir.open(uri or self.log.uri))

    def use(self, log: LogDir) -> None:
        """The topic is in this log directory from now on."""
        self.log = log
        self._close_database()

    def close(self) -> None:
        self._close_database()
        self._running.close()

    def _close_database(self) -> None:
        if self.database is not None:
            self.database.__exit__()
        self.database = None

    def cluster(self) -> str:
        """The address of a broker, which runs as long as the history."""
        if self._cluster is None:
            self._cluster = self._running.enter_context(running_broker(self.directory / "cluster"))
        return self._cluster


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did: its exit code, and what it printed on standard output and on standard error."""

    code: int
    output: bytes
    error: str


def segments(*arguments: object) -> Ran:
    """Runs the command `segments` in this process."""
    output, error = io.BytesIO(), io.StringIO()
    text = io.TextIOWrapper(output, "utf-8", write_through=True)
    code = 0
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = text, error
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        text.flush()
        sys.stdout, sys.stderr = before
    return Ran(code, output.getvalue(), error.getvalue())


# What readers see


def check_equal(seen: Any, expected: Any) -> None:
    """Raises AssertionError with the first differences."""
    if seen == expected:
        return
    if not isinstance(seen, dict) or not isinstance(expected, dict):
        raise AssertionError(f"sees {seen!r}, not {expected!r}")
    kinds = {
        "lacks": {place: expected[place] for place in expected if place not in seen},
        "has besides": {place: seen[place] for place in seen if place not in expected},
        "differs in": {place: seen[place] for place in seen if place in expected and seen[place] != expected[place]},
    }
    words = [
        f"{kind} " + ", ".join(f"{place}: {row}" for place, row in list(rows.items())[:3])
        for kind, rows in kinds.items()
        if rows
    ]
    raise AssertionError("; ".join(words))


def headers_of(row: Row) -> list[dict[str, Any]]:
    """Some headers of a row: two of one name, of which half of the rows have the same value."""
    _, value, _ = row
    is_odd = value is not None and int(value) % 2 == 1
    values = [b"odd" if is_odd else b"even", value]
    return [{"key": HEADER, "value": own} for own in values]


def rows_by_place(table: Any) -> dict[Place, Record]:
    """Rows of Arrow, Polars or DuckDB with the columns of a record."""
    rows = table.select(["partition", "offset", "key", "value", "timestamp"])
    listed = rows.to_pylist() if hasattr(rows, "to_pylist") else rows.to_dicts()
    return {
        (row["partition"], row["offset"]): Record(row["key"], row["value"], _ms(row["timestamp"])) for row in listed
    }


def _ms(moment: datetime) -> int:
    return round((moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
