"""Notes of what each process did, and of every try of a commit before it is sent: a killed process leaves both."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change_writer import ChangeWriter
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.schemas import KIND, SEGMENT_KIND
from spark_segments.storage.delta import commit_info, paths_of
from verification.world.manifest_rows import Change, Snapshot
from verification.world.stores.played_log import CommitNote


class Notes:
    """What one actor did, a line each. A process that was killed may have left half a line."""

    def __init__(self, path: Path) -> None:
        self.lines = read_notes(path)
        self._path = path
        self._lock = threading.Lock()
        self._line_end = "\n" if path.exists() and not path.read_bytes().endswith(b"\n") else ""

    def write(self, **what: Any) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(self._line_end + json.dumps(what) + "\n")
            self._line_end = ""
            self.lines.append(what)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The whole lines of an actor."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


class Journal:
    """Notes each try of a commit of this process, with the `intent` that the actor has set: what it is about to do."""

    def __init__(self, notes: Notes) -> None:
        self.intent: dict[str, Any] = {}
        self._notes = notes
        self._planned = threading.local()
        planned, commit_on = ChangeWriter.planned, DeltaLog.commit_on

        def noted_plan(writer: ChangeWriter, snapshot: Snapshot, files: Any, change: Change, *others: Any) -> Any:
            self._planned.value = snapshot, change
            return planned(writer, snapshot, files, change, *others)

        def noted_commit(delta: DeltaLog, base: Any, files: Any, note: CommitNote, *others: Any, **options: Any) -> Any:
            if note.operation != Operation.MERGE_FILES:  # it follows another commit, whose plan is not its own
                self._note(note)
            return commit_on(delta, base, files, note, *others, **options)

        for owner, name, method in (
            (ChangeWriter, "planned", noted_plan),
            (DeltaLog, "commit_on", noted_commit),
        ):
            setattr(owner, name, method)

    def _note(self, note: CommitNote) -> None:
        snapshot, change = self._planned.value
        self._notes.write(
            tried=note.commit_id,
            attempt=note.attempt,
            operation=note.operation,
            intent=self.intent,
            transactions={sent.application: sent.version for sent in change.transactions},
            **_effects(snapshot, change),
        )


def _effects(snapshot: Snapshot, change: Change) -> dict[str, Any]:
    """What a change says of itself: the model checks it, or follows where a job chooses how far it goes."""
    moved = row_tables.raised(change.partitions).to_pylist()
    names = ("log_start_offset", "log_end_offset", "first_dirty_offset")
    found: dict[str, Any] = {"partitions": {row["partition"]: [row[name] for name in names] for row in moved}}
    if change.config is not None:
        found["config"] = dict(change.config)
    if change.topic is not None:
        found["config"] = dict(change.topic.config)
    if change.operation in ("retain", "compact", "import"):
        add, replace = _rows(change.add), _rows(change.replace)
        live = snapshot.live.select(["partition", "base_offset", "next_offset", "log_bytes", "path"]).to_pylist()
        gone = {row["path"] for row in replace if row["state"] == Segment.REMOVED}
        for number in found["partitions"].keys() | {row["partition"] for row in [*add, *replace]}:
            mine = [row for row in live if row["partition"] == number]
            reached = [row["next_offset"] for row in [*add, *replace] if row["partition"] == number]
            found.setdefault("segments", {})[number] = {
                "log_bytes": sum(row["log_bytes"] for row in mine),
                "gone": [[row[name] for name in ("base_offset", "next_offset", "log_bytes")] for row in mine
                         if row["path"] in gone],
                "all_gone": bool(mine) and all(row["path"] in gone for row in mine),
                "reached": max(reached, default=0),
            }  # fmt: skip
    return found


def _rows(rows: Any) -> list[dict[str, Any]]:
    table = rows if isinstance(rows, pa.Table) else Segment.table(rows)
    return table.select(["partition", "next_offset", "path", "state"]).to_pylist()


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a topic. `line`: the try that became it, as it was noted; None where no row changed."""

    version: int
    committed_ms: int
    operation: str
    line: dict[str, Any] | None


def commits_of(log: LogDir, topic: str, tried: dict[tuple[str, int], dict[str, Any]]) -> list[Commit]:
    """All versions of a topic, from the first on. Raises AssertionError for one that nobody has tried."""
    of_topic = log.topic(topic).manifest.log
    versions = of_topic.versions()
    assert versions == list(range(len(versions))), "Delta's log is whole"
    found = []
    for version in versions:
        actions = of_topic.delta.actions(version)
        info = commit_info(actions)
        line = tried.get((info["commitId"], int(info["attempt"])))
        if info["change"] == Operation.MERGE_FILES:
            touched = [path for action in ("add", "remove") for path in paths_of(actions, action)]
            assert all(path.startswith(f"{KIND}={SEGMENT_KIND}/") for path in touched), f"{version} merges {touched}"
        else:
            assert line is not None, f"{topic}: nobody tried version {version}"
        found.append(Commit(version, info["timestamp"], info["change"], line))
    return found


def tries(lines: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """The noted tries by (commit id, attempt)."""
    return {(line["tried"], line["attempt"]): line for line in lines if "tried" in line}
