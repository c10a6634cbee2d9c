"""A registry in a directory: a file for each schema, and `subjects.json`, which maps subjects to schemas.

    7.avsc          the schema with the id 7; .proto is Protobuf, .json is JSON Schema
    contexts/.west/7.avsc   the schema with the id 7 in the context .west
    <GUID>.avsc     a schema by its GUID, such as the id of a schema version of AWS Glue's
    subjects.json   {"compatibility": "BACKWARD", "references": {}, "guids": {"<GUID>": "7"},
                     "subjects": {"orders-value": {"versions": {"1": 7}}}}

A new schema can be registered in a directory on this machine or a mount. A directory of an object store has no lock, so
its schemas can be used, and new ones are refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_segments.storage import Storage
from spark_segments.values.registries.registry import (
    AVRO,
    DEFAULT_LEVEL,
    JSON,
    LATEST_VERSION,
    PROTOBUF,
    Registry,
    Schema,
    check_compatible,
    context_of,
    json_of_schema,
    qualified_in,
    references_of_json,
    schema_number,
)

SUBJECTS = "subjects.json"
_SUFFIXES = {AVRO: "avsc", PROTOBUF: "proto", JSON: "json"}


class DirectoryRegistry(Registry):
    """Schemas as files."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.address = uri
        self._options = dict(storage_options or {})

    def subjects(self) -> dict[str, dict[int, int]]:
        subjects = sorted(self._index()["subjects"].items())
        return {name: {int(v): n for v, n in subject["versions"].items()} for name, subject in subjects}

    def version(self, subject: str, version: int = LATEST_VERSION) -> Schema | None:
        versions = self.subjects().get(subject) or {}
        schema_id = versions.get(max(versions, default=0) if version == LATEST_VERSION else version)
        return None if schema_id is None else self.schema(schema_id, subject)

    def register(self, subject: str, schema: Schema) -> int:
        registered = self._id_of(subject, schema)
        if registered is not None:  # takes no lock, which object stores lack
            return registered
        with self._locked(f"a schema for {subject}") as directory:
            # Again, now that no other process registers: one may have taken the lock, and the schema, in between.
            registered = self._id_of(subject, schema)
            if registered is not None:
                return registered
            index = self._index()
            entry = index["subjects"].setdefault(subject, {"versions": {}})
            versions = {int(version): number for version, number in entry["versions"].items()}
            level = entry.get("compatibility") or index.get("compatibility") or DEFAULT_LEVEL
            old = [self.schema(versions[version], subject) for version in sorted(versions)]
            check_compatible(self, subject, schema, old, level)
            folder = directory / _folder(context_of(subject))
            numbers = [int(path.stem) for path in folder.glob("*.*") if path.stem.isdigit()]
            alike = (number for number in sorted(numbers) if self.schema(number, subject) == schema)
            schema_id = next(alike, None) or max(numbers, default=0) + 1
            if schema_id not in numbers:
                _write(folder, f"{schema_id}.{_SUFFIXES[schema.kind]}", schema.text)
            _add(index, subject, max(versions, default=0) + 1, schema_id, schema)
            _write(directory, SUBJECTS, json.dumps(index, indent=2))
            return schema_id

    def _id_of(self, subject: str, schema: Schema) -> int | None:
        """The id of a schema that the subject has."""
        ids = self.subjects().get(subject, {}).values()
        return next((schema_id for schema_id in ids if self.schema(schema_id, subject) == schema), None)

    def _load(self, context: str, schema_id: int) -> Schema:
        index = self._index()
        name = qualified_in(context, str(schema_id))
        guid = next((guid for guid, named in index["guids"].items() if named == name), None)
        schema = self._read(index, context, str(schema_id), schema_id, guid)
        if schema is None:
            raise self._missing(context, schema_id)
        return schema

    def _load_guid(self, guid: str) -> Schema:
        index = self._index()
        name = index["guids"].get(guid, guid)
        schema = self._read(index, context_of(name), name.rpartition(":")[2], None, guid)
        return super()._load_guid(guid) if schema is None else schema

    def _read(
        self, index: Mapping[str, Any], context: str, name: str, schema_id: int | None, guid: str | None
    ) -> Schema | None:
        """The schema in the file of this name, without its suffix; None where there is none."""
        storage = Storage(self.address, self._options)
        references = references_of_json(index["references"].get(qualified_in(context, name), ()), context)
        for kind, suffix in _SUFFIXES.items():
            with contextlib.suppress(FileNotFoundError), self._understood(f"The schema {name}"):
                text = bytes(storage.read(f"{_folder(context)}{name}.{suffix}")).decode()
                return Schema(kind, text, references, schema_id, guid)
        return None

    def _index(self) -> dict[str, Any]:
        """`subjects.json`, checked: everything in it has its type."""
        index: dict[str, Any] = {"compatibility": DEFAULT_LEVEL, "subjects": {}, "references": {}, "guids": {}}
        with contextlib.suppress(FileNotFoundError), self._understood(SUBJECTS):
            content = json.loads(bytes(Storage(self.address, self._options).read(SUBJECTS)))
            index |= content.items()
            for subject in index["subjects"].values():
                for version, schema_id in subject["versions"].items():
                    schema_number(int(version))
                    schema_number(schema_id)
            for entry in (index, *index["subjects"].values()):
                if not isinstance(entry.get("compatibility", ""), str):
                    raise ValueError("a compatibility level that is no text")
            for references in index["references"].values():
                references_of_json(references)
            if not all(isinstance(text, str) for pair in index["guids"].items() for text in pair):
                raise ValueError("a GUID of no schema")
        return index

    @contextlib.contextmanager
    def _locked(self, what: str) -> Iterator[Path]:
        """The directory, locked: no other process registers in it meanwhile."""
        if not Storage(self.address, self._options).is_local:
            raise self.error(
                f"Cannot register {what} in a directory of an object store",
                "Register it in a directory on disk and copy its files there, or use an HTTP registry or a mount",
            )
        directory = Path(self.address.removeprefix("file://"))
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in directory.rglob(".*.new"):  # by a process that was killed
                left.unlink()
            yield directory


def _folder(context: str) -> str:
    """The folder of a context's schemas in the directory, with a slash behind it."""
    return f"contexts/{context}/" if context else ""


def _add(index: dict[str, Any], subject: str, version: int, schema_id: int, schema: Schema) -> None:
    index["subjects"].setdefault(subject, {"versions": {}})["versions"][str(version)] = schema_id
    name = qualified_in(context_of(subject), str(schema_id))
    if schema.references:
        index["references"][name] = json_of_schema(schema)["references"]
    if schema.guid is not None:
        index["guids"][schema.guid] = name


def _write(directory: Path, name: str, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f".{name}.new"
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, directory / name)
