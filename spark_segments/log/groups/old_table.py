"""Groups as versions before 0.2 kept them: a small Delta table, with one Parquet file of positions in a version.

They are read as they are. Before a group's first numbered file is made, its table gets a last version that takes the
file of positions out: whoever still writes the table finds a version that he cannot go on from. That version names the
file whose positions are the group's, so that a conversion that was killed goes on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments.errors import StorageError
from spark_segments.log.groups.group_files import GroupRows
from spark_segments.log.positions import Position
from spark_segments.storage import FileInfo, Storage

_VERSION = re.compile(r"(\d{20})\.json")
_TRIES = 10

_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("topic_id", pa.string()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("committed_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class OldTable:
    """The newest version of a table. `is_ended`: it is the one that takes the file of positions out."""

    version: int
    is_ended: bool
    file: str
    rows: GroupRows


def read_old_table(storage: Storage, directory: str) -> OldTable | None:
    """The table in a group's directory, None where there is none. Raises StorageError where it is damaged."""
    for _ in range(_TRIES):
        version = max(_versions(storage, directory), default=None)
        if version is None:
            return None
        location = storage.location(f"{directory}/_delta_log/{version:020d}.json")
        try:
            content = storage.read(f"{directory}/_delta_log/{version:020d}.json").to_pybytes()
            actions = [json.loads(line) for line in content.splitlines() if line.strip()]
            added = [action["add"]["path"] for action in actions if "add" in action]
            [file] = added or [action["remove"]["path"] for action in actions if "remove" in action]
            if not re.fullmatch(r"[\w.-]+", file):
                raise ValueError("no name of a file of positions")
            rows = _rows(storage.read(f"{directory}/{file}"))
            return OldTable(version, not added, file, rows)
        except FileNotFoundError:  # newer versions have taken its place
            continue
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, StorageError):
                raise
            text = f"The positions that an older version kept are damaged ({str(error) or type(error).__name__})"
            raise StorageError(text, path=location, hint="Restore the file from a backup") from error
    raise StorageError("The positions are gone as soon as found", path=storage.location(directory))


def end_old_table(storage: Storage, directory: str, table: OldTable) -> bool:
    """Writes the last version of a table. False where another version came first."""
    remove = {"path": table.file, "dataChange": True, "deletionTimestamp": 0, "partitionValues": {}}
    info = {"operation": "WRITE", "operationParameters": {"converted to": "numbered files"}}
    content = "".join(f"{json.dumps(action)}\n" for action in ({"commitInfo": info}, {"remove": remove}))
    try:
        storage.create(f"{directory}/_delta_log/{table.version + 1:020d}.json", content.encode())
    except FileExistsError:
        return False
    return True


def files_of_ended_table(storage: Storage, directory: str) -> list[FileInfo]:
    """The files of a table that was ended, save its last version, which keeps older versions of this package away."""
    log = storage.list(f"{directory}/_delta_log")
    last = f"{directory}/_delta_log/{max(_versions(storage, directory), default=0):020d}.json"
    rows = [info for info in storage.list(directory) if info.path.endswith(".parquet")]
    return rows + [info for info in log if info.path != last]


def _versions(storage: Storage, directory: str) -> list[int]:
    names = (info.path.rpartition("/")[2] for info in storage.list(f"{directory}/_delta_log"))
    return [int(match[1]) for name in names if (match := _VERSION.fullmatch(name))]


def _rows(content: pa.Buffer) -> GroupRows:
    found = pq.ParquetFile(pa.BufferReader(content)).read(columns=_SCHEMA.names)
    table = found.select(_SCHEMA.names).cast(_SCHEMA)
    table.validate(full=True)
    if any(column.null_count for column in table.columns):
        raise ValueError("a position lacks a value")
    return {
        (row["topic"], row["partition"]): Position(
            row["offset"], row["topic_id"], row["leader_epoch"], committed_ms=row["committed_ms"]
        )
        for row in table.to_pylist()
    }
