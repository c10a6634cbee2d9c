"""Vectors: directories of files, what is asked of them, and the answers, as `vectors.json` beside them lists them."""

from __future__ import annotations

import functools
import json
import lzma
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "vectors.json"

Request = dict[str, Any]
"""A question to a reader; docs/format/conformance.md has the members of each."""

Record = dict[str, Any]
"""partition, offset, timestamp (ms), timestampType, key, value (base64 or None), headers ([[name, base64 or None]])."""

_RECORD = ("partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
_EXPECTED = ("records", "topics", "offsets", "offset", "refused", "may_refuse", "from")
_KAFKAS_TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


@dataclass(frozen=True, slots=True)
class Vector:
    """One directory of the kit. `rules`: the rules of docs/format that it shows. `findings`: the rules that the judge
    of writers must find broken. `base`: another directory, whose files this one has, too, unless it has its own or they
    are in `removed`. `then`: the directory whose files take the place of its own while a reader is under way.
    """

    root: Path
    name: str
    about: str
    rules: Sequence[str]
    requests: Sequence[Request]
    log: str | None = None
    kafka: str | None = None
    base: str | None = None
    removed: Sequence[str] = ()
    findings: Sequence[str] = ()
    then: str | None = None

    def lay_out(self, place: Path) -> Path:
        """The directory, whole: below `place` where it is laid over another, or changes. A reader only reads it."""
        directory = self.root / (self.log or self.kafka or "")
        if self.then is not None:
            return Path(shutil.copytree(directory, place / self.name / directory.name))
        if self.base is None:
            return directory
        target = place / self.name
        shutil.copytree(self.root / self.base, target)
        for path in self.removed:
            (target / path).unlink()
        if directory.is_dir():
            shutil.copytree(directory, target, dirs_exist_ok=True)
        return target

    def change(self, directory: Path) -> None:
        """Gives the directory the files of `then`. Another content comes with another inode, as a cleaner's does."""
        assert self.then is not None
        files = {path.name: path.read_bytes() for path in sorted((self.root / self.then).iterdir())}
        for name, content in files.items():
            if not (directory / name).exists() or (directory / name).read_bytes() != content:
                staged = directory / f"{name}.staged"
                staged.write_bytes(content)
                staged.rename(directory / name)
        for path in sorted(directory.iterdir()):
            if path.name not in files:
                path.unlink()

    def ask(self, request: Request, directory: Path) -> Request:
        """The request as a reader gets it."""
        place = {"log": str(directory)} if self.kafka is None else {"directory": str(directory)}
        return {**{name: value for name, value in request.items() if name not in _EXPECTED}, **place}

    def expected(self, request: Request) -> list[Record] | None:
        """The records that a request asks for, in order; None where it asks for no records."""
        records = request.get("records")
        if not isinstance(records, str):
            return records
        topic = request.get("topic")
        answers = []
        for record in _records(self.root / records):
            if "isolation" in record and record["isolation"] != request["isolation_level"]:
                continue
            if topic is not None and record.get("topic", topic) != topic:
                continue
            if record.get("isControl") or record["offset"] < request.get("from", 0):
                continue
            if request["isolation_level"] == "read_committed" and not record.get("committed", True):
                continue
            answers.append(_plain(record))
        return answers


def read_index(root: Path) -> list[Vector]:
    """The vectors of a directory."""
    return [Vector(root, **entry) for entry in json.loads((root / INDEX).read_text(encoding="utf-8"))]


@functools.lru_cache(4)
def _records(path: Path) -> list[Record]:
    return [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]


def _plain(record: Mapping[str, Any]) -> Record:
    """A record as the kit compares it. Kafka's own tools name the timestamp type, and know no partition."""
    kind = record["timestampType"]
    found = {"partition": 0, **record, "timestampType": _KAFKAS_TIMESTAMP_TYPES.get(kind, kind)}
    return {name: found[name] for name in _RECORD}
