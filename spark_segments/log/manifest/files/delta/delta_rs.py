"""Versions of a topic's table, which commits build upon, and what delta-rs does here: it opens versions, and makes
checkpoints of them. It writes to no store.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake import exceptions as delta_errors

from spark_segments.errors import LogDirError, StorageError
from spark_segments.log.manifest.files.delta.actions import added_file, bounds, rows_or_unknown
from spark_segments.log.manifest.files.row_files import STATISTICS, RowFile
from spark_segments.log.manifest.schemas import KIND
from spark_segments.quantities import Moment
from spark_segments.storage import Storage
from spark_segments.storage.delta import Action, commit_info, paths_of, reason
from spark_segments.storage.native import native
from spark_segments.storage.scratch import scratch_directory


class CommitFailedError(Exception):
    """A commit was sent and got no good answer. It may have happened, or may happen yet."""


class CommitNotSentError(CommitFailedError):
    """The file system refused the commit: it has not happened and cannot happen any more."""


class VersionTakenError(CommitFailedError):
    """The version is taken: by another commit, or by this same commit where an earlier reply was lost."""


LONG_AGO = Moment(0.0, 0.0)


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, as it was opened, followed or committed. Never changes.

    `files`: in no particular order. `protocol`, `metadata`: as Delta's actions have them. `latest_at`: a moment at
    which no later version was there. `commit_info`: what the commit says of itself; empty where the version was opened.
    """

    version: int
    files: Sequence[RowFile]
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    latest_at: Moment = LONG_AGO
    commit_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """False of what `no_table` returns."""
        return self.version >= 0

    def after(self, actions: Iterable[Action], latest_at: Moment) -> TableVersion:
        """The version that a commit of these actions makes of this one."""
        actions = list(actions)
        gone = {*paths_of(actions, "remove"), *paths_of(actions, "add")}  # a path that is added again is there once
        added = [added_file(action["add"]) for action in actions if "add" in action]
        metadata = next((action["metaData"] for action in actions if "metaData" in action), self.metadata)
        return dataclasses.replace(
            self,
            version=self.version + 1,
            files=[*(file for file in self.files if file.path not in gone), *added],
            metadata=metadata,
            latest_at=latest_at,
            commit_info=commit_info(actions),
        )


def no_table(latest_at: Moment | None = None) -> TableVersion:
    """What the first version of a table comes after. `latest_at`: when no version was there; None: now."""
    return TableVersion(-1, (), {}, {}, latest_at or Moment.now())


_FAILURES = (delta_errors.DeltaError, OSError, ValueError)


OpenTable = Callable[[Storage, str, int | None], TableVersion]
"""Opens a version of the table in a directory, None: the latest. Raises as `DeltaLog.open` does."""


def open_table(storage: Storage, directory: str, version: int | None) -> TableVersion:
    """An `OpenTable` by delta-rs."""
    uri, options = storage.delta_uri(directory)
    location = storage.location(directory)
    try:
        with native("delta-rs"):
            table = DeltaTable(uri, version=version, storage_options=options or None)
            opened = TableVersion(table.version(), _files(table), _protocol(table), _metadata(table))
        if version is not None and table.version() != version:
            raise FileNotFoundError(f"Version {version} is not there: delta-rs opened {table.version()}")
        return opened
    except delta_errors.TableNotFoundError as error:
        raise FileNotFoundError(storage.hidden(reason(error))) from error
    except delta_errors.DeltaProtocolError as error:
        text = storage.hidden(reason(error))
        raise LogDirError(f"The manifest cannot be read: {text}", path=location) from error
    except FileNotFoundError:
        raise
    except _FAILURES as error:
        text = storage.hidden(reason(error))
        raise StorageError(f"The manifest cannot be opened: {text}", path=location) from error


def _files(table: DeltaTable) -> list[RowFile]:
    # Not pa.table(…), which would import pandas where that is installed: half of the start-up of a command.
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
    nothing = [None] * actions.num_rows
    limits = [
        map(bounds, columns.get(f"min.{name}", nothing), columns.get(f"max.{name}", nothing)) for name in STATISTICS
    ]
    fields = ("path", f"partition.{KIND}", "num_records", "size_bytes", "modification_time")
    return [
        RowFile(
            unquote(path),
            kind or "",
            rows_or_unknown(count),
            size,
            modified_ms,
            dict(zip(STATISTICS, these, strict=True)),
        )
        for path, kind, count, size, modified_ms, *these in zip(
            *(columns.get(name, nothing) for name in fields), *limits, strict=True
        )
    ]


def _protocol(table: DeltaTable) -> dict[str, Any]:
    protocol = table.protocol()
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }


def _metadata(table: DeltaTable) -> dict[str, Any]:
    metadata = table.metadata()
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": dict(metadata.configuration),
    }


def made_checkpoint(log: Iterable[tuple[str, bytes]]) -> tuple[bytes, bytes]:
    """(a checkpoint of the latest version, the pointer to it) of a log that has these files, each of (name, bytes).

    delta-rs makes it in a temporary directory, so that a store gets it whole, and a disk before its name is there.
    Raises CommitFailedError, and StorageError where $TMPDIR is full.
    """
    with scratch_directory() as place:
        directory = Path(place, "_delta_log")
        directory.mkdir()
        before = set()
        for name, content in log:
            Path(directory, name).write_bytes(content)
            before.add(name)
        try:
            with native("delta-rs"):
                DeltaTable(place).create_checkpoint()
        except _FAILURES as error:
            raise CommitFailedError(reason(error)) from error
        checkpoints = [name for name in os.listdir(directory) if name not in before and name.endswith(".parquet")]
        return Path(directory, checkpoints[0]).read_bytes(), Path(directory, "_last_checkpoint").read_bytes()
