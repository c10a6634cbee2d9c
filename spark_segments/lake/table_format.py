"""The border between a table and its format on disk: all that an update asks of a table, and the values it asks with.

Delta (delta_table.py) and Iceberg (iceberg_table.py) are the formats. Another one is two classes of these methods.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from spark_segments.config import READ_COMMITTED
from spark_segments.errors import LogDirError
from spark_segments.log import Eras, Erasure, LeaderEpochs, Position, Selection, Snapshot
from spark_segments.replicas.role import role_of
from spark_segments.storage import Storage

DAY = "day"
"""The column of days, by UTC, that a table may be partitioned by."""

KEY_BYTES = "key_bytes"
"""The column of a typed key's bytes, in an archive and in a latest table: what decodes alike may be several keys."""

_SETTINGS = "segments.table"


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table was made as. `formats`: options such as value.format, without a registry's credentials. `key_bytes`:
    each row of the archive has the bytes of its typed key, since the table was made with that column.
    """

    topic: str
    view: str | None = None
    archive: bool = False
    formats: Mapping[str, str] | None = None
    key_bytes: bool = False

    @property
    def is_latest(self) -> bool:
        """Whether the table has the newest record of each key, and no others."""
        return self.view == Selection.LATEST_VIEW

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> TableSettings | None:
        """The settings in a table's properties; None for a table that other programs made. Raises LogDirError for
        settings that cannot be read.
        """
        text = properties.get(_SETTINGS)
        if text is None:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise LogDirError(
                f"The table's property {_SETTINGS} cannot be read",
                expected="what segments table wrote there, in this version or an earlier one",
                found=text[:200],
                hint="Set the property as an earlier version of the table has it, or make another table",
            ) from error

    def to_properties(self) -> dict[str, str]:
        """The properties of a table that keep them."""
        fields = dataclasses.asdict(self)
        if not self.key_bytes:  # versions before this field read the others
            del fields["key_bytes"]
        return {_SETTINGS: json.dumps(fields)}


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a query of the topic has to know of a table's rows, and no column of the table says.

    `timestamp_types`: of the records, as Kafka numbers them, in order. `has_passed_tombstones`: a latest table has left
    out tombstones, which the view `latest` may have. `has_older_columns`: rows came in before the table had its present
    columns and formats. `has_gone`: an archive may have rows that left the topic by something other than a log start.
    """

    timestamp_types: tuple[int, ...] = ()
    has_passed_tombstones: bool = False
    has_older_columns: bool = False
    has_gone: bool = False

    def joined(self, other: RowFacts) -> RowFacts:
        """The facts of the rows of both."""
        return RowFacts(
            tuple(sorted({*self.timestamp_types, *other.timestamp_types})),
            self.has_passed_tombstones or other.has_passed_tombstones,
            self.has_older_columns or other.has_older_columns,
            self.has_gone or other.has_gone,
        )

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any] | None) -> RowFacts | None:
        """The facts in a commit's text; None where it has none."""
        if fields is None:
            return None
        return cls(**{**fields, "timestamp_types": tuple(map(int, fields["timestamp_types"]))})


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the table. `bounds`: by column the least and the greatest value; of partition and offset at
    least, or none: then the file may hold any row.
    """

    path: str
    size: int
    rows: int | None
    day: str | None = None
    bounds: Mapping[str, tuple[Any, Any]] | None = None

    @property
    def may_hide_nan(self) -> bool:
        """Whether a reader that goes by the file's own bounds of floats may pass over rows with NaN: Parquet's bounds
        leave it out. Files of this package have no such bounds. Those of other programs and of its earlier versions,
        which have other names, may have some.
        """
        return _FILE_NAME.fullmatch(self.path.rpartition("/")[2]) is None


def new_file_name() -> str:
    """The name of a file that this package writes."""
    return f"rows-{uuid.uuid4()}.zstd.parquet"


_FILE_NAME = re.compile(r"rows-[0-9a-f-]{36}\.zstd\.parquet")


def has_floats(fields: Iterable[pa.Field]) -> bool:
    """Whether any of the fields is a float, or has one in it."""
    kinds = [field.type for field in fields]
    return any(
        pa.types.is_floating(kind)
        or (pa.types.is_nested(kind) and has_floats(kind.field(number) for number in range(kind.num_fields)))
        for kind in kinds
    )


@dataclass(frozen=True, slots=True)
class TablePositions:
    """What of its topic a table has: by partition the position up to which it has the records, and the log start then,
    at a time by the storage's clock.

    Records behind the last stable offset wait for the end of their transaction. `version`: that of the topic's manifest
    by which records have left the table; None where there is none, as in a directory of Kafka's. `across`: whether the
    newest record of a key was looked for in all partitions. `commit_id`: of the commit that made the version. A
    promoted follower and a rebuilt manifest count their own versions, so that a number alone names no version; ""
    where the log lacked the commit. `erasures`: {id: time of its last commit} of the erasures that the topic
    remembered, which are the same at a leader and at its followers. `facts`: of the rows. Earlier versions of this
    package wrote none of the three (None).
    """

    topic_id: str
    positions: Mapping[int, Position]
    log_starts: Mapping[int, int]
    at_ms: int
    version: int | None = None
    across: bool = False
    erasures: Mapping[str, int] | None = None
    commit_id: str | None = None
    facts: RowFacts | None = None

    @classmethod
    def of(
        cls, snapshot: Snapshot, at_ms: int, commit_id: str | None, ends: Mapping[int, int] | None = None
    ) -> TablePositions:
        """The positions of a table that has all that may be read of a snapshot, up to `ends` unless they are None.
        `commit_id`: of the snapshot's version; None where the topic has no manifest.
        """
        version = None if commit_id is None else snapshot.version
        bounds = snapshot.offset_bounds(READ_COMMITTED)
        if ends is None:
            ends = {number: end for number, (_, end) in bounds.items()}
        epochs = {row.partition: LeaderEpochs.of(row) for row in snapshot.partition_rows}
        positions = {
            number: Position(end, snapshot.topic_id, epochs[number].before(end)) for number, end in ends.items()
        }
        starts = {number: start for number, (start, _) in bounds.items()}
        erasures = {erasure.erasure_id: erasure.committed_ms for erasure in Erasure.of(snapshot)}
        across = Eras.of(snapshot) is not None
        return cls(snapshot.topic_id, positions, starts, at_ms, version, across, erasures, commit_id)

    def is_before(self, erasure: Erasure, topic: Snapshot) -> bool:
        """Whether the table had these positions before the erasure of the topic, as far as anybody knows."""
        if self.erasures is not None:
            return self.erasures.get(erasure.erasure_id) != erasure.committed_ms  # it may have gone on since
        if self.version is None or role_of(topic).epoch:  # after a promotion the version may be the former leader's
            return True
        return erasure.version > self.version

    def is_of_manifest(self, topic: Snapshot, commit_id: str | None) -> bool:
        """Whether `version` is a version of the topic's manifest, in which that version has this commit (None: nobody
        knows). Else numbers of the two cannot be compared.
        """
        if self.commit_id is None:
            return not role_of(topic).epoch
        return bool(self.commit_id) and self.commit_id == commit_id

    def end(self, partition: int) -> int:
        """The first offset of a partition that the table has not reached."""
        position = self.positions.get(partition)
        return 0 if position is None else position.offset

    def to_json(self) -> str:
        """The text that a commit keeps."""
        positions = sorted(self.positions.items())
        offsets = {number: [self.log_starts[number], position.offset] for number, position in positions}
        epochs = {number: position.leader_epoch for number, position in positions if position.leader_epoch}
        fields = {"topic_id": self.topic_id, "offsets": offsets, "at_ms": self.at_ms, "version": self.version}
        # A field without a value is left out, as earlier versions of this package wrote it.
        if epochs:
            fields["leader_epochs"] = epochs
        if self.across:
            fields["across"] = self.across
        if self.erasures is not None:
            fields["erasures"] = self.erasures
        if self.commit_id is not None:
            fields["commit_id"] = self.commit_id
        if self.facts is not None:
            fields["facts"] = dataclasses.asdict(self.facts)
        return json.dumps({"segments": fields})

    @classmethod
    def from_json(cls, text: str) -> TablePositions | None:
        """The positions in a commit's text; None for a text that another program wrote."""
        try:
            fields = json.loads(text)["segments"]
            topic_id = fields["topic_id"]
            epochs = fields.get("leader_epochs", {})
            positions = {}
            starts = {}
            for name, (start, end) in fields["offsets"].items():
                positions[int(name)] = Position(end, topic_id, epochs.get(name, 0))
                starts[int(name)] = start
            return cls(
                topic_id,
                positions,
                starts,
                fields["at_ms"],
                fields["version"],
                fields.get("across", False),
                dict(fields["erasures"]) if "erasures" in fields else None,
                fields.get("commit_id"),
                RowFacts.of_fields(fields.get("facts")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class NewColumns:
    """The columns and settings of a table after a commit that changes its columns. `needs_new_files`: the existing
    files do not fit these columns, and each is to be rewritten; columns that a file lacks are null.
    """

    schema: pa.Schema
    settings: TableSettings
    needs_new_files: bool


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What a commit makes of a table: its positions, the files that come and go, and its columns (None: they stay)."""

    positions: TablePositions
    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    columns: NewColumns | None


class Tables(Protocol):
    """A format's tables."""

    def open(self, storage: Storage) -> TableFormat | None:
        """The latest version; None where there is no table. Raises LogDirError for a table that none may write to."""

    def create(self, storage: Storage, schema: pa.Schema, by_day: bool, settings: TableSettings) -> None:
        """Makes a table without rows. Of several processes that make it at once, only the first does."""

    def fitting(self, schema: pa.Schema) -> pa.Schema:
        """The columns as files of a new table have them."""


class TableFormat(Protocol):
    """A version of the table at a storage's root. `schema`: of the columns that lie in files. `partitioned_by`: DAY, or
    what a topic's table is not partitioned by. `settings`: None for a table that other programs made.
    `own_positions`: the positions that this version's own commit says; None where it is another program's.
    `replaces_files`: whether it has a commit for `replace_files`.
    """

    storage: Storage
    version: int
    schema: pa.Schema
    partitioned_by: list[str]
    settings: TableSettings | None
    own_positions: TablePositions | None
    replaces_files: bool

    def is_newest(self) -> bool:
        """Whether no version follows this one, where that costs less than to open the table; else False."""

    def renamed(self) -> Mapping[str, str]:
        """{earlier name of a column, however deep: the name that it has now} where a program has renamed one."""

    def is_read_by_names(self) -> bool:
        """Whether a column of each file is the table's column of that name, however deep: no program has renamed
        one, or dropped one and added another of its name.
        """

    def new_columns(self, schema: pa.Schema, settings: TableSettings) -> NewColumns:
        """The table's new columns by the format's rules, for those of `schema`, which are wider. Raises
        InvalidOptionError where the format does not widen a type so.
        """

    def positions(self) -> Iterator[TablePositions | None]:
        """The positions of the commits that made what this version holds, the newest first; in the end None where
        earlier commits are gone.

        A commit of another program that keeps the rows is passed over. One that restores an earlier version holds what
        that version held. Any other raises LogDirError: nobody knows which records the table has.
        """

    def files(self) -> list[DataFile]:
        """The files of this version."""

    def commit(self, commit: TableCommit) -> bool:
        """Puts the next version; False where another commit has its number, or this one whose reply was lost."""

    def replace_files(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> bool:
        """Puts the next version, in which files are replaced by others of the same rows; False as in `commit`."""

    def tidy(self) -> None:
        """Does what the format wants of its writers from time to time."""


def own_catalog(storage: Storage) -> Path:
    """The SQLite catalog of a directory's Iceberg tables that are in no other catalog. It lies beside them."""
    return Path(storage.uri).parent / "iceberg.sqlite"


def changed_by_others(storage: Storage, keep_rows: str, found: str, hint: str) -> LogDirError:
    """The error of `positions`. `keep_rows`: the commits that do. `hint`: the way back to one of ours; "": none."""
    return LogDirError(
        "Another program has changed the rows of the table, so that nobody knows which records it has",
        path=storage.uri,
        expected=keep_rows,
        found=found,
        hint=f"{hint}, or make another table" if hint else "Make another table",
    )
