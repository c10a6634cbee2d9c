"""Versions of a table that delta-rs keeps: one that it opened, and one that was just committed to a local disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from spark_segments.log.manifest.delta.delta_log import commit_info
from spark_segments.log.manifest.row_files import STATISTICS, UNBOUNDED, RowFile
from spark_segments.log.manifest.schemas import KIND

_WRITER_VERSION = 2  # of the protocol with which delta-rs makes our tables


class VersionsLog(Protocol):
    """What versions ask of the log that they are versions of; see DeltaRsLog."""

    def open(self, version: int | None = None) -> DeltaRsVersion: ...

    def check_commits(self, version: int) -> None: ...

    def has_commit(self, version: int) -> bool: ...

    def actions(self, version: int) -> list[dict[str, Any]]: ...

    def last_transactions(self, version: int) -> dict[str, int]: ...


class DeltaRsVersion:
    """A version of a table, as delta-rs opened it."""

    def __init__(self, table: DeltaTable, log: VersionsLog) -> None:
        self.table = table
        self._log = log

    @property
    def version(self) -> int:
        return self.table.version()

    @cached_property
    def files(self) -> list[RowFile]:
        """See `TableVersion.files`."""
        # Not pa.table(…), which would import pandas where that is installed: half of the start-up of a command.
        actions = pa.RecordBatchReader.from_stream(self.table.get_add_actions(flatten=True)).read_all()
        columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
        nothing = [None] * actions.num_rows
        bounds = [
            zip(columns.get(f"min.{name}", nothing), columns.get(f"max.{name}", nothing), strict=True)
            for name in STATISTICS
        ]
        fields = ("path", f"partition.{KIND}", "num_records", "size_bytes", "modification_time")
        rows = zip(*(columns[name] for name in fields), *bounds, strict=True)
        return [
            RowFile(path, kind, count, size, modified_ms, dict(zip(STATISTICS, map(_known, limits), strict=True)))
            for path, kind, count, size, modified_ms, *limits in rows
        ]

    @cached_property
    def has_known_protocol(self) -> bool:
        """Whether a commit may be written without delta-rs: nobody has given the table features that others ask for."""
        protocol = self.table.protocol()
        return protocol.min_writer_version <= _WRITER_VERSION and not protocol.writer_features

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the table's columns."""
        return frozenset(field.name for field in self.table.schema().fields)

    def last_transaction(self, application_id: str) -> int | None:
        """See `TableVersion.last_transaction`."""
        return self.table.transaction_version(application_id)

    def last_transactions(self) -> dict[str, int]:
        """See `TableVersion.last_transactions`."""
        return self._log.last_transactions(self.version)


@dataclass(frozen=True, slots=True)
class LocalVersion:
    """See `CommittedVersion`: a version of a local log, committed by the commit of this id."""

    version: int
    files: list[RowFile]
    columns: frozenset[str]
    commit_id: str
    log: VersionsLog
    has_known_protocol: bool = True

    @property
    def table(self) -> DeltaTable:
        """The version, opened."""
        return self.log.open(self.version).table

    def is_latest(self) -> bool:
        """Two small reads say so: the log is cut from its start on, so where a version is, the next one was not cut."""
        self.log.check_commits(self.version)
        try:
            mine = commit_info(self.log.actions(self.version)).get("commitId") == self.commit_id
        except FileNotFoundError:
            return False
        return mine and not self.log.has_commit(self.version + 1)

    def last_transaction(self, application_id: str) -> int | None:
        """See `TableVersion.last_transaction`."""
        return self.table.transaction_version(application_id)

    def last_transactions(self) -> dict[str, int]:
        """See `TableVersion.last_transactions`."""
        return self.log.last_transactions(self.version)


def _known(limits: tuple[int | None, int | None]) -> tuple[int, int]:
    # A file without statistics may hold anything.
    least, greatest = limits
    return (UNBOUNDED[0] if least is None else least, UNBOUNDED[1] if greatest is None else greatest)
