"""An appender to log directories, written from docs/format/appending.md: it creates topics and appends, with commits
that race others and find lost replies. It imports nothing of the package.

As a program it answers the tasks of the conformance kit. A `fault` makes it break one rule, in silence.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
import sys
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from verification.specification.specification_writer import Batch, Record, Topic, indexes, note, table

CHECKPOINT_VERSIONS = 20
TRIES = 200
SEGMENT_BYTES, MESSAGE_BYTES = 1 << 30, 1_048_588

FAULTS = {
    "statistics": "M34",
    "count": "M34",
    "size": "M34",
    "no note": "W23",
    "cut note": "W23",
    "false note": "W23",
    "no commit id": "W24",
    "low last stable offset": "M35",
    "high last stable offset": "M35",
    "no epochs": "M13",
    "large chunk": "W9",
    "large batch": "M30",
    "no key": "W12",
    "attribute bit 7": "B17",
    "record attributes": "B18",
    "no checkpoint": "W19",
}
"""What the writer may do wrong, each with the rule that it breaks."""


class RefusedError(Exception):
    """What is asked for is not allowed. Nothing was committed."""


@dataclass(frozen=True)
class Version:
    """A version of a topic's table: its files with their kinds, and the rows of each."""

    number: int
    files: Mapping[str, str]
    rows: Mapping[str, list[dict[str, Any]]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [row for path, rows in self.rows.items() if self.files[path] == kind for row in rows]

    @property
    def topic(self) -> dict[str, Any]:
        [row] = self.of_kind("topic")
        return row


@dataclass
class Commit:
    """What a commit adds (paths with kinds and contents) and removes, and its actions."""

    operation: str
    added: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Appender:
    """A writer of one topic. `loses_reply`: the answer to the first request of a commit seems not to come."""

    log: Path
    name: str
    fault: str | None = None
    loses_reply: bool = False

    @property
    def table(self) -> Path:
        return self.log / "_manifest" / self.name

    # Reading

    def latest(self) -> int:
        numbers = [int(path.name[:20]) for path in (self.table / "_delta_log").glob("*.json") if _is_commit(path)]
        return max(numbers, default=-1)

    def version(self) -> Version:
        number = self.latest()
        files = _files(self.table, number)
        rows = {path: pq.ParquetFile(self.table / path).read().to_pylist() for path in files}
        return Version(number, files, rows)

    # Tasks

    def create(self, partitions: int, config: Mapping[str, str]) -> None:
        marker = self.log / "_manifest" / "log-directory.json"
        if not marker.exists():
            marker.parent.mkdir(parents=True, exist_ok=True)
            _put(marker, b'{"format.version": 1}')
        if self.latest() >= 0:
            raise RefusedError(f"topic {self.name} is there")
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        topic = {"topic_id": topic_id, "deleted_topics": {}, "states": {}}
        topic["properties"] = {"format.version": "2", **config}
        rows = [self._partition(topic_id, number, 0, {}) for number in range(partitions)]
        commit = Commit("create", actions=table(self.name))
        self._add(commit, "topic", [topic])
        self._add(commit, "partition", rows)
        if not self._sent(Version(-1, {}, {}), commit, uuid.uuid4().hex, 0):
            raise RefusedError(f"topic {self.name} is there")

    def alter(self, config: Mapping[str, str]) -> None:
        """Gives the topic other settings, of whatever values."""
        version = self.version()
        commit = Commit("alter")
        self._rewrite(
            commit, version, "topic", lambda row: {**row, "properties": {**dict(row["properties"]), **config}}
        )
        if not self._sent(version, commit, uuid.uuid4().hex, 0):
            raise RefusedError("another commit came first")

    def append(
        self, records: Mapping[int, Sequence[Record]], transaction: tuple[str, int] | None = None
    ) -> dict[int, tuple[int, int]]:
        """Appends, and returns the first and the last offset of each partition; none for a repeated transaction."""
        version = self.version()
        chunks = self._chunks(version.topic, records)
        commit_id, first = uuid.uuid4().hex, version.number + 1
        for attempt in range(TRIES):
            self._check(version.topic, records)
            if transaction is not None and self._has(version, *transaction):
                return {}
            commit, offsets = self._planned(version, chunks, transaction)
            if self._sent(version, commit, commit_id, attempt):
                return offsets
            made = self._made(commit_id, first)
            if made is not None:
                return offsets
            version = self.version()
        raise RefusedError("other commits came first")

    def _check(self, topic: Mapping[str, Any], records: Mapping[int, Sequence[Record]]) -> None:
        properties, states = dict(topic["properties"]), dict(topic["states"])
        if properties["format.version"] != "2" or "deleted_ms" in properties:
            raise RefusedError("no topic of version 2")
        if states.get("role", "leader") != "leader":
            raise RefusedError(f"the topic is a {states['role']}")
        keys = (record.key for batch in records.values() for record in batch)
        if "compact" in properties.get("cleanup.policy", "delete") and None in keys and self.fault != "no key":
            raise RefusedError("a compacted topic needs keys")

    def _has(self, version: Version, application: str, number: int) -> bool:
        rows = [row for row in version.of_kind("transaction") if row["topic_id"] == version.topic["topic_id"]]
        last = next((row["version"] for row in rows if row["application_id"] == application), -1)
        if number < last:
            raise RefusedError(f"version {number} of {application} is below {last}")
        return number == last

    # Files of the log

    def _chunks(
        self, topic: Mapping[str, Any], records: Mapping[int, Sequence[Record]]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Writes a chunk for a partition, or several where segment.bytes asks for them. (partition, its row)"""
        properties = dict(topic["properties"])
        most = int(properties.get("segment.bytes", SEGMENT_BYTES))
        interval = int(properties.get("index.interval.bytes", 4096))
        rows = []
        for partition, batch in sorted(records.items()):
            for part in self._parts(self._batches(properties, batch), most):
                rows.append((partition, self._chunk(topic["topic_id"], partition, part, interval)))
        return rows

    def _batches(self, properties: Mapping[str, str], records: Sequence[Record]) -> list[Batch]:
        most = int(properties.get("max.message.bytes", MESSAGE_BYTES))
        attributes = {"attribute bit 7": 0x80, "high last stable offset": 0x10}.get(self.fault or "", 0)
        producer = (7, 0, 0) if self.fault == "high last stable offset" else (-1, -1, -1)
        batches: list[Batch] = []
        group: list[Record] = []
        for record in records:
            longer = Batch([*group, dataclasses.replace(record, offset=len(group))])
            if len(longer.data) > most and self.fault != "large batch":
                if not group:
                    raise RefusedError("a record above max.message.bytes")
                batches.append(Batch(group))
                group = [dataclasses.replace(record, offset=0)]
            else:
                group = list(longer.records)
        batches += [Batch(group)] if group else []
        if self.fault == "record attributes":
            batches = [_with_record_attributes(batch) for batch in batches]
        return [dataclasses.replace(batch, attributes=attributes, producer=producer) for batch in batches]

    def _parts(self, batches: Sequence[Batch], most: int) -> Iterator[list[Batch]]:
        """Batches of at most `most` bytes together, with offsets from 0."""
        part: list[Batch] = []
        for batch in batches:
            if part and self.fault != "large chunk" and sum(len(one.data) for one in [*part, batch]) > most:
                yield part
                part = []
            part.append(dataclasses.replace(batch, base_offset=part[-1].last_offset + 1 if part else 0))
        if part:
            yield part

    def _chunk(self, topic_id: str, partition: int, batches: Sequence[Batch], interval: int) -> dict[str, Any]:
        path = f"{self.name}-{partition}/{0:020d}.{uuid.uuid4().hex}"
        index, times = indexes(batches, 0, interval)
        row = Topic(self.log, self.name).row(batches, f"{path}.log", 0, 0, partition)
        contents = {"log": b"".join(batch.data for batch in batches), "index": index, "timeindex": times}
        for suffix, content in contents.items():
            Topic(self.log).write(f"{path}.{suffix}", content)
        sizes = {"index_bytes": len(index), "time_index_bytes": len(times), "created_ms": _now_ms()}
        return {**row, **sizes, "topic_id": topic_id}

    # The commit

    def _planned(
        self, version: Version, chunks: Sequence[tuple[int, dict[str, Any]]], transaction: tuple[str, int] | None
    ) -> tuple[Commit, dict[int, tuple[int, int]]]:
        """The commit that gives the chunks the next offsets, and these."""
        topic_id = version.topic["topic_id"]
        before = {row["partition"]: row for row in version.of_kind("partition")}
        ends = {number: row["log_end_offset"] for number, row in before.items()}
        offsets: dict[int, tuple[int, int]] = {}
        rows = []
        for partition, chunk in chunks:
            base = ends[partition]
            ends[partition] = base + chunk["next_offset"]
            largest = chunk["offset_of_max_timestamp"]
            moved = {"base_offset": base, "next_offset": ends[partition], "topic_id": topic_id}
            moved["offset_of_max_timestamp"] = largest + base if largest >= 0 else -1
            rows.append({**chunk, **moved})
            offsets[partition] = (offsets.get(partition, (base, 0))[0], ends[partition] - 1)
        commit = Commit("append")
        self._rewrite(commit, version, "partition", lambda row: self._moved(row, ends))
        if rows:
            self._add(commit, "segment", rows)
        if transaction is not None:
            application, number = transaction
            row = {"topic_id": topic_id, "application_id": application, "version": number, "committed_ms": _now_ms()}
            self._rewrite(commit, version, "transaction", lambda row: _others(row, topic_id, application))
            self._add(commit, "transaction", [row])
            commit.actions.append({"txn": {"appId": f"{application}@{topic_id}", "version": number}})
        return commit, offsets

    def _moved(self, row: dict[str, Any], ends: Mapping[int, int]) -> dict[str, Any]:
        end = ends[row["partition"]]
        return row if end == row["log_end_offset"] else self._partition(row["topic_id"], row["partition"], end, row)

    def _partition(self, topic_id: str, number: int, end: int, before: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a partition whose log now ends at `end`."""
        stable = before.get("last_stable_offset", 0)
        if stable == before.get("log_end_offset", 0) and self.fault != "low last stable offset":
            stable = end
        row = {"topic_id": topic_id, "partition": number, "log_start_offset": 0, "first_dirty_offset": 0}
        row |= {"leader_epoch": 0, "leader_epochs": [{"epoch": 0, "start_offset": 0}], **before}
        row |= {"leader_epochs": []} if self.fault == "no epochs" else {}
        return {**row, "log_end_offset": end, "last_stable_offset": stable}

    def _rewrite(self, commit: Commit, version: Version, kind: str, change: Any) -> None:
        """Copy on write: the files of a kind in which a row changes are replaced. `change` gives None for a row that
        goes.
        """
        for path, rows in version.rows.items():
            if version.files[path] != kind:
                continue
            after = [changed for row in rows if (changed := change(row)) is not None]
            if after != rows:
                commit.removed.append(path)
                if after:
                    self._add(commit, kind, after)

    def _add(self, commit: Commit, kind: str, rows: Sequence[dict[str, Any]]) -> None:
        rows = [{name: _mapped(value) for name, value in row.items()} for row in rows]
        action = Topic(self.log, self.name).add(kind, rows, f"part-{uuid.uuid4().hex}")
        add = action["add"]
        content = (self.table / add["path"]).read_bytes()
        commit.added.append((add["path"], kind, len(rows), content))
        commit.actions.append(self._false(action, kind))

    def _false(self, action: dict[str, Any], kind: str) -> dict[str, Any]:
        """The action with statistics that are wrong, where the fault is one of these."""
        add = action["add"]
        stats = json.loads(add["stats"])
        if kind == "segment" and self.fault == "statistics":
            stats["minValues"]["partition"] = stats["maxValues"]["partition"] = 77
        if kind == "segment" and self.fault == "count":
            stats["numRecords"] += 1
        if self.fault == "size":
            add["size"] += 1
        add["stats"] = json.dumps(stats)
        return action

    def _sent(self, version: Version, commit: Commit, commit_id: str, attempt: int) -> bool:
        """Asks for the next version. Whether it was made, as far as the answer says."""
        number = version.number + 1
        info = {"timestamp": _now_ms(), "operation": "WRITE", "change": commit.operation}
        info |= {} if self.fault == "no commit id" else {"commitId": commit_id, "attempt": attempt}
        removes = [
            {"remove": {"path": path, "dataChange": True, "deletionTimestamp": _now_ms()}} for path in commit.removed
        ]
        lines = [{"commitInfo": info}, *commit.actions, *removes]
        recovery = self.log / "_recovery" / self.name
        path_of_note = recovery / f"{number:020d}.{commit_id}-{attempt}.note"
        if self.fault != "no note":
            recovery.mkdir(parents=True, exist_ok=True)
            path_of_note.write_bytes(self._note(version, commit, number, f"{commit_id}-{attempt}"))
        path = self.table / "_delta_log" / f"{number:020d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _put(path, "\n".join(map(json.dumps, lines)).encode()):
            return False
        if self.loses_reply:
            self.loses_reply = False
            return False
        self._finish(number, path_of_note)
        return True

    def _made(self, commit_id: str, first: int) -> int | None:
        """The version that a request made whose answer did not come."""
        for number in range(first, self.latest() + 1):
            path = self.table / "_delta_log" / f"{number:020d}.json"
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            info = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
            if info.get("commitId") == commit_id:
                name = f"{number:020d}.{commit_id}-{info['attempt']}.note"
                self._finish(number, self.log / "_recovery" / self.name / name)
                return number
        return None

    def _note(self, version: Version, commit: Commit, number: int, name: str) -> bytes:
        content = note(
            self.name,
            number,
            name,
            commit.operation,
            _now_ms(),
            before=version.files,
            removed=commit.removed,
            added=commit.added,
        )
        if self.fault == "false note":
            line = content.partition(b"\n")[0]
            head = json.loads(line)
            false = json.dumps({**head, "after": head["before"]}).encode()
            content = content.replace(
                line + b'\n{"crc32":%d}' % zlib.crc32(line), false + b'\n{"crc32":%d}' % zlib.crc32(false)
            )
        return content[: len(content) // 2] if self.fault == "cut note" else content

    def _finish(self, number: int, path_of_note: Path) -> None:
        """What follows a commit: the mark of its note and, where the last one is 20 versions behind, a checkpoint."""
        if self.fault != "no note":
            path_of_note.with_suffix(".made").write_bytes(b"{}\n")
        checkpoints = (self.table / "_delta_log").glob("*.checkpoint.parquet")
        last = max((int(path.name[:20]) for path in checkpoints), default=0)
        if number - last >= CHECKPOINT_VERSIONS and self.fault != "no checkpoint":
            self._checkpoint(number)

    def _checkpoint(self, number: int) -> None:
        version = self.version()
        adds, tables = _table_actions(self.table, version.number)
        path = self.table / "_delta_log" / f"{version.number:020d}.checkpoint.parquet"
        write_checkpoint(path, [*tables, *adds])
        pointer = json.dumps({"version": version.number, "size": len(adds) + len(tables)})
        _replace(self.table / "_delta_log" / "_last_checkpoint", pointer.encode())
        self._copy(version)

    def _copy(self, version: Version) -> None:
        """A recovery copy: the files first, the index last."""
        directory = self.log / "_recovery" / self.name
        files = []
        for path, kind in version.files.items():
            files.append({"path": path, "kind": kind, "rows": len(version.rows[path])})
            target = directory / path
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                _replace(target, (self.table / path).read_bytes())
        index = {"format.version": 1, "topic": self.name, "topic_id": version.topic["topic_id"]}
        index |= {"version": version.number, "committed_ms": _now_ms(), "notes": True, "files": files}
        _replace(directory / f"{version.number:020d}.json", json.dumps(index).encode())


# Delta's table


def _files(table: Path, number: int) -> dict[str, str]:
    """{path of a file: kind} of a version."""
    adds, _ = _table_actions(table, number)
    return {unquote(action["add"]["path"]): dict(action["add"]["partitionValues"])["kind"] for action in adds}


def _table_actions(table: Path, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the add actions of a version, its protocol, metadata and transactions)."""
    log = table / "_delta_log"
    checkpoints = [int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")]
    start = max((version for version in checkpoints if version <= number), default=-1)
    actions = [] if start < 0 else pq.ParquetFile(log / f"{start:020d}.checkpoint.parquet").read().to_pylist()
    for version in range(start + 1, number + 1):
        actions += [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
    adds: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    for action in actions:
        for name, value in action.items():
            if value is None:
                continue
            if name == "remove":
                adds.pop(value["path"], None)
            elif name == "add":
                adds[value["path"]] = {"add": value}
            elif name in ("protocol", "metaData", "txn"):
                others[name + value.get("appId", "")] = {name: value}
    protocol = others.get("protocol", {}).get("protocol", {})
    if protocol.get("minReaderVersion", 1) > 1 or protocol.get("minWriterVersion", 2) > 2:
        raise RefusedError("the table asks for more")
    return list(adds.values()), list(others.values())


def write_checkpoint(path: Path, actions: Sequence[Mapping[str, Any]]) -> None:
    """A checkpoint of these actions."""
    texts = pa.map_(pa.string(), pa.string())
    add = [("path", pa.string()), ("partitionValues", texts), ("size", pa.int64()), ("modificationTime", pa.int64())]
    add += [("dataChange", pa.bool_()), ("stats", pa.string())]
    provider = pa.struct([("provider", pa.string()), ("options", texts)])
    metadata = [(name, pa.string()) for name in ("id", "name", "description", "schemaString")] + [("format", provider)]
    metadata += [("partitionColumns", pa.list_(pa.string())), ("configuration", texts), ("createdTime", pa.int64())]
    kinds = {
        "add": pa.struct(add),
        "remove": pa.struct([("path", pa.string())]),
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        "metaData": pa.struct(metadata),
    }
    rows = [{name: _struct(value) for name, value in action.items()} for action in actions]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))), sink, compression="snappy")
    _replace(path, sink.getvalue().to_pybytes())


def _struct(value: Mapping[str, Any]) -> dict[str, Any]:
    """An action with its maps as Arrow has them."""
    maps = ("partitionValues", "configuration", "options")
    return {
        name: list(inner.items())
        if name in maps and isinstance(inner, dict)
        else _struct(inner)
        if isinstance(inner, dict)
        else inner
        for name, inner in value.items()
    }


def _mapped(value: Any) -> Any:
    """A value of a row; Arrow gives a map as a list of pairs."""
    is_map = isinstance(value, list) and value and isinstance(value[0], tuple)
    return dict(value) if is_map else value


def _others(row: dict[str, Any], topic_id: str, application: str) -> dict[str, Any] | None:
    return None if (row["topic_id"], row["application_id"]) == (topic_id, application) else row


def _with_record_attributes(batch: Batch) -> Batch:
    base = batch.records[0].timestamp
    sections = [record.encoded(base) for record in batch.records]
    return dataclasses.replace(batch, section=b"".join(map(_with_attributes, sections)))


def _with_attributes(record: bytes) -> bytes:
    """A record whose attributes, behind its length, are 1."""
    at = next(number for number, byte in enumerate(record) if byte < 0x80) + 1
    return record[:at] + b"\1" + record[at + 1 :]


# Files


def _is_commit(path: Path) -> bool:
    return re.fullmatch(r"\d{20}\.json", path.name) is not None


def _put(path: Path, content: bytes) -> bool:
    """Creates a file whole, if there is none of its name. Whether it did."""
    staged = _staged(path, content)
    try:
        os.link(staged, path)
    except FileExistsError:
        return False
    finally:
        staged.unlink()
    return True


def _replace(path: Path, content: bytes) -> None:
    os.replace(_staged(path, content), path)


def _staged(path: Path, content: bytes) -> Path:
    staged = path.with_name(f".{uuid.uuid4().hex}.tmp")
    staged.write_bytes(content)
    return staged


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# The line protocol of the conformance kit


def answer(task: Mapping[str, Any], fault: str | None = None) -> dict[str, Any]:
    """What came of a task."""
    appender = Appender(Path(task["log"]), task["topic"], fault, bool(task.get("lost_reply")))
    try:
        if task["task"] == "create":
            appender.create(task["partitions"], task["config"])
            return {"done": {}}
        if task["task"] != "append":
            return {"unsupported": task["task"]}
        records: dict[int, list[Record]] = {}
        for one in task["records"]:
            headers = tuple((name, _bytes(value)) for name, value in one["headers"])
            record = Record(0, _bytes(one["value"]), _bytes(one["key"]), one["timestamp"], headers)
            records.setdefault(one["partition"], []).append(record)
        transaction = task.get("transaction")
        sent = None if transaction is None else (transaction["application_id"], transaction["version"])
        offsets = appender.append(records, sent)
    except RefusedError as error:
        return {"refused": str(error)}
    return {"done": {str(number): list(bounds) for number, bounds in offsets.items()}}


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def main() -> None:
    """Answers the tasks of standard input. An argument is the fault that the writer has."""
    fault = next(iter(sys.argv[1:]), None)
    for line in sys.stdin:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer(json.loads(line), fault)), flush=True)


if __name__ == "__main__":
    main()
