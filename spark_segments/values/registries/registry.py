"""Schema registries: the schema of an id, the schemas of a subject, and the registration of a new schema.

Three kinds: a Confluent-compatible HTTP address, a directory (`<id>.avsc`, `<id>.proto`, `<id>.json` and
`subjects.json`), and the records of a cluster's topic `_schemas`. An id never changes its meaning, so schemas are kept.

An id is unique in a context, not in a registry: the subject `:.west:orders-value` is in the context `.west`, and
`orders-value` in the default one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_segments.errors import RegistryError, UnknownSchemaError
from spark_segments.values.avro.evolution import incompatibility
from spark_segments.values.avro.schema import parse
from spark_segments.values.format_options import FORMAT_OF, KINDS

AVRO, PROTOBUF, JSON = KINDS.values()
DEFAULT_LEVEL = "BACKWARD"
LATEST_VERSION = -1
_WHICH = "Is it the registry that the records were written with?"
_FIRST_OF_GUIDS = 1 << 31
"""No registry has an id of this size."""
_QUALIFIED = re.compile(r":(\.(?:[\w-][\w.-]*)?):")


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another schema uses under `name`."""

    name: str
    subject: str
    version: int


def context_of(subject: str | None) -> str:
    """The context of a subject, such as `.west`; "" is the default context."""
    qualified = _QUALIFIED.match(subject or "")
    return "" if qualified is None or qualified[1] == "." else qualified[1]


def qualified_in(context: str, subject: str) -> str:
    """The subject by its name in the default context: one that names no context is in `context`."""
    return f":{context}:{subject}" if context and _QUALIFIED.match(subject) is None else subject


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of the kind AVRO, PROTOBUF or JSON. `id` is None until it is registered; registries of 2025 and later
    give a GUID, too, which is the same in all of them.
    """

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    id: int | None = field(default=None, compare=False)
    guid: str | None = field(default=None, compare=False)


class Registry:
    """A registry; subclasses say where its schemas are. Objects go to Spark's tasks by pickle."""

    address = ""

    def __init__(self) -> None:
        self._schemas: dict[tuple[str, int], Schema] = {}
        self._guids: dict[str, int] = {}

    def schema(self, schema_id: int, subject: str | None = None) -> Schema:
        """The schema of an id in the context of a subject. Raises RegistryError where there is none."""
        place = context_of(subject), schema_id
        if place not in self._schemas:
            guid = next((guid for guid, number in self._guids.items() if number == schema_id), None)
            self._schemas[place] = self._load(*place) if guid is None else self._load_guid(guid)
        return self._schemas[place]

    def number_of_guid(self, guid: str) -> int:
        """An id that stands for the schema with a GUID, in this process, whether the registry has it or not."""
        return self._guids.setdefault(guid, _FIRST_OF_GUIDS + len(self._guids))

    def version(self, subject: str, version: int = LATEST_VERSION) -> Schema | None:
        """A version of a subject, by default its newest; None where there is none."""
        raise NotImplementedError

    def subjects(self) -> dict[str, dict[int, int]]:
        """{subject: {version: id}}."""
        raise NotImplementedError

    def register(self, subject: str, schema: Schema) -> int:
        """Adds a schema to a subject and returns its id; the same schema keeps its id.

        Raises RegistryError where the subject's compatibility level does not allow it.
        """
        raise self.error(f"Cannot register a schema for {subject}", "It is read-only")

    def references(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        """(name, text) of all schemas that a schema uses, directly or not. A schema comes before its users."""
        texts: dict[str, str] = {}
        self._collect(schema, texts, 0)
        return tuple(texts.items())

    def error(self, message: str, hint: str | None = None, found: object = None) -> RegistryError:
        """The error for this registry. It never has credentials in it."""
        return RegistryError(message, path=self.address, hint=hint, found=found, expected=None)

    @contextlib.contextmanager
    def _understood(self, what: str) -> Iterator[None]:
        """Turns the errors of reading what others wrote, which may be anything, into a RegistryError."""
        try:
            yield
        except RegistryError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            name = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise self.error(f"{what} cannot be understood", "Check schema.registry", name[:200]) from error

    def _load(self, context: str, schema_id: int) -> Schema:
        raise NotImplementedError

    def _collect(self, schema: Schema, texts: dict[str, str], depth: int) -> None:
        if depth > 32:
            raise self.error("Schemas refer to each other in a circle")
        for reference in schema.references:
            used = self.version(reference.subject, reference.version)
            if used is None:
                raise self.error(f"No version {reference.version} of {reference.subject}, which a schema refers to")
            self._collect(used, texts, depth + 1)
            texts.setdefault(reference.name, used.text)

    def _load_guid(self, guid: str) -> Schema:
        raise UnknownSchemaError(f"No schema has the GUID {guid}", path=self.address, hint=_WHICH)

    def _missing(self, context: str, schema_id: int) -> RegistryError:
        where = f" in the context {context}" if context else ""
        return UnknownSchemaError(f"No schema has the id {schema_id}{where}", path=self.address, hint=_WHICH)


class RecordsRegistry(Registry):
    """The registry in the records of the topic `_schemas`. Read-only."""

    def __init__(self, records: Iterable[tuple[bytes | None, bytes | None]], address: str = "_schemas") -> None:
        """`records` are (key, value) in the order of their offsets."""
        super().__init__()
        self.address = address
        self._subjects: dict[str, dict[int, Schema]] = {}
        self.levels: dict[str | None, str] = {}
        for number, (key, value) in enumerate(records):
            if key is not None:
                with self._understood(f"The record {number} of {address}"):
                    self._apply(json.loads(key), None if value is None else json.loads(value))

    def subjects(self) -> dict[str, dict[int, int]]:
        return {
            name: {version: schema.id or 0 for version, schema in sorted(versions.items())}
            for name, versions in sorted(self._subjects.items())
            if versions
        }

    def version(self, subject: str, version: int = LATEST_VERSION) -> Schema | None:
        versions = self._subjects.get(subject) or {}
        return versions.get(max(versions, default=0) if version == LATEST_VERSION else version)

    def _load(self, context: str, schema_id: int) -> Schema:
        alike = {schema: other for (other, number), schema in self._schemas.items() if number == schema_id}
        if context or not alike:
            raise self._missing(context, schema_id)
        if len(alike) > 1:
            names = ", ".join(sorted(alike.values()))
            raise UnknownSchemaError(
                f"The id {schema_id} is another schema in each of the contexts {names}",
                path=self.address,
                hint="Set value.subject (or key.subject) to the subject with its context, such as :.west:orders-value",
            )
        return next(iter(alike))

    def _load_guid(self, guid: str) -> Schema:
        alike = (schema for schema in self._schemas.values() if schema.guid == guid)
        return next(alike, None) or super()._load_guid(guid)

    def _apply(self, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> None:
        """Applies a record. A deleted schema's id stays valid: records still have the id."""
        kind = key.get("keytype")
        subject = key.get("subject")
        if not isinstance(subject, str | None):
            raise ValueError("a subject that is no text")
        if kind == "CONFIG":
            if value is None:
                self.levels.pop(subject, None)
            else:
                self.levels[subject] = value.get("compatibilityLevel", DEFAULT_LEVEL)
        elif kind in ("DELETE_SUBJECT", "CLEAR_SUBJECT") and value is not None and subject is not None:
            last = value.get("version") or max(self._subjects.get(subject, {}), default=0)
            for version in [version for version in self._subjects.get(subject, {}) if version <= last]:
                del self._subjects[subject][version]
        elif kind == "SCHEMA" and subject is not None:
            self._apply_schema(subject, key, value)

    def _apply_schema(self, subject: str, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> None:
        versions = self._subjects.setdefault(subject, {})
        is_deleted = value is None or value.get("deleted")
        if is_deleted:
            versions.pop(key["version"], None)
        if value is None:
            return
        schema_id = schema_number(value["id"])
        schema = schema_of_json(value, schema_id, context_of(subject))
        self._schemas[context_of(subject), schema_id] = schema
        if not is_deleted:
            versions[schema_number(key["version"])] = schema


def schema_of_json(value: Any, schema_id: int | None, context: str = "") -> Schema:
    """A schema as registries' JSON has it: schema, schemaType (AVRO where it is left out), references, which are to
    subjects of its context where they name none.

    Raises ValueError, TypeError or KeyError for any other value.
    """
    kind = value.get("schemaType") or AVRO
    text = value["schema"]
    if kind not in FORMAT_OF or not isinstance(text, str):
        raise ValueError(f"a schema of no known kind; there are {', '.join(FORMAT_OF)}")
    guid = value.get("guid")
    if not isinstance(guid, str | None):
        raise ValueError("a GUID that is no text")
    return Schema(kind, text, references_of_json(value.get("references") or (), context), schema_id, guid)


def references_of_json(values: Any, context: str = "") -> tuple[Reference, ...]:
    """References as registries' JSON has them. Raises as `schema_of_json`."""
    references = tuple(
        Reference(value["name"], qualified_in(context, value["subject"]), int(value["version"])) for value in values
    )
    if not all(isinstance(reference.name, str) and isinstance(reference.subject, str) for reference in references):
        raise ValueError("a reference without a name and a subject")
    return references


def schema_number(value: Any) -> int:
    """An id or a version. Raises ValueError for what is none."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("an id or a version that is no number of 31 bits")
    return value


def json_of_schema(schema: Schema) -> dict[str, Any]:
    """A registry's JSON of a schema: the inverse."""
    content: dict[str, Any] = {"schema": schema.text}
    if schema.kind != AVRO:
        content["schemaType"] = schema.kind
    if schema.references:
        content["references"] = [
            {"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references
        ]
    return content


def check_compatible(registry: Registry, subject: str, new: Schema, old: list[Schema], level: str) -> None:
    """Raises RegistryError where `new` may not follow `old` (newest last). Only Avro has rules here."""
    if new.kind != AVRO or level == "NONE":
        return
    if any(schema.kind != AVRO for schema in old):
        raise registry.error(f"The schemas of {subject} are not Avro", "Register it under another subject")

    def node(schema: Schema) -> Any:
        return parse(schema.text, tuple(text for _, text in registry.references(schema)))

    why = incompatibility(node(new), [node(schema) for schema in old], level)
    if why is not None:
        raise registry.error(
            f"The schema is not compatible ({level}) with those of {subject}",
            "Give new fields a default, or set the subject's compatibility level",
            why,
        )
