"""Writes the schemas of a registry as the files that docs/values.md describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_segments.values.registries.registry import Registry, Schema, context_of

SUFFIXES = {"AVRO": "avsc", "PROTOBUF": "proto", "JSON": "json"}


def write_registry(directory: Path, registry: Registry) -> str:
    """Writes every subject of a registry, with its versions and ids, into a new directory; returns its address."""
    index: dict[str, Any] = {"subjects": {}, "guids": {}}
    for subject, versions in registry.subjects().items():
        index["subjects"][subject] = {"versions": versions}
        context = context_of(subject)
        folder = directory / "contexts" / context if context else directory
        for schema_id in versions.values():
            schema = registry.schema(schema_id, subject)
            _write_schema(folder, schema_id, schema)
            if schema.guid is not None:
                index["guids"][schema.guid] = f":{context}:{schema_id}" if context else str(schema_id)
    (directory / "subjects.json").write_text(json.dumps(index))
    return str(directory)


def _write_schema(folder: Path, schema_id: int, schema: Schema) -> None:
    assert not schema.references, "references stand in subjects.json, too"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{schema_id}.{SUFFIXES[schema.kind]}").write_text(schema.text)
