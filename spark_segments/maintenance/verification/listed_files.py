"""What became of the files that a list of checksums names: compared with it, or gone from the log, and by what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_segments.errors import LogDirError
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.files.delta.actions import added_file
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import OUT_OF_LOG, in_states
from spark_segments.log.manifest.schemas import SEGMENT_KIND
from spark_segments.storage.delta import commit_info

UNKNOWN = "unknown"
"""What took a file where no commit says it that the manifest still has: vacuum takes old commits."""


@dataclass(slots=True)
class ListedFiles:
    """Of the files of a list: how many there are, how many were compared, and {operation: files that it took}."""

    files: int = 0
    compared: int = 0
    gone: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """As the report's details have it."""
        return {"files": self.files, "compared": self.compared, "gone": dict(sorted(self.gone.items()))}

    def add(
        self, manifest: Manifest, since_version: int, listed: Collection[str], live: Collection[str], findings: Findings
    ) -> None:
        """Counts the files of a topic. `listed`, `live`: paths without suffixes, of each file and of each live row.

        None of them left to compare is a finding: such a look has shown nothing of the topic.
        """
        gone = [stem for stem in listed if stem not in live]
        self.files += len(listed)
        self.compared += len(listed) - len(gone)
        if not gone:
            return
        operations = _operations(manifest, since_version)
        counts = Counter(operations.get(stem, UNKNOWN) for stem in gone)
        self.gone += counts
        if len(gone) == len(listed):
            findings.add(
                "No file of the list of checksums is in the topic any more: nothing was compared",
                expected=f"any of {len(listed)} files",
                found=f"gone by {by_operation(counts)}",
            )


def by_operation(gone: Counter[str] | dict[str, int]) -> str:
    """As `3 erase, 2 retain`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(gone.items()))


def _operations(manifest: Manifest, since_version: int) -> dict[str, str]:
    """{path without its suffix: the operation that took it out of the log}, by the commits after a version that the
    manifest still has.
    """
    taken: dict[str, str] = {}
    for version in manifest.log.versions():
        if version <= since_version:
            continue
        try:
            actions = manifest.log.delta.actions(version)
            added = [added_file(action["add"]) for action in actions if "add" in action]
            tables = manifest.log.store.read_all([file for file in added if file.kind == SEGMENT_KIND])
        except (FileNotFoundError, LogDirError):  # vacuum took it, or its rows
            continue
        operation = commit_info(actions).get("change") or UNKNOWN
        if operation == Operation.MERGE_FILES:
            continue
        for stem in _stems_out_of_log(tables):
            taken.setdefault(stem, operation)
    return taken


def _stems_out_of_log(tables: Iterable[pa.Table]) -> Iterable[str]:
    for rows in tables:
        for path in in_states(rows, *OUT_OF_LOG).column("path").to_pylist():
            yield path.rpartition(".")[0]
