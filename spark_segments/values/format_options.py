"""The options of key and value formats: `value.format` and its companions, the same for keys, the registry.

The same names serve Spark's reader and writer, the command line's --property and LogDir. Names are case-insensitive.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.storage import Storage

JSON_SCHEMA = "jsonschema"
FORMATS = (
    "binary",
    "string",
    "json",
    "short",
    "int",
    "long",
    "float",
    "double",
    "uuid",
    "avro",
    "protobuf",
    JSON_SCHEMA,
    "connect-json",
    "csv",
)
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", JSON_SCHEMA: "JSON"}
"""{format of Confluent's wire format, where there is a registry: the kind of its schemas}"""
FORMAT_OF = {kind: name for name, kind in KINDS.items()}
COLUMNS = ("key", "value")
FAIL, NULL = "fail", "null"
_PARTS = ("format", "schema", "errors", "raw.column", "subject", "message", "schemas.enable")
REGISTRY = "schema.registry"
SCHEMAS_TOPIC = "_schemas"
"""The topic of a Confluent registry's schemas. As schema.registry: that topic of the same log directory."""
_REGISTRY_PARTS = ("basic.auth.user.info", "bearer.auth.token")
_LONGEST_PATH = 4096
_DESCRIPTOR_ENDINGS = (".desc", ".pb", ".binpb", ".protoset")
AUTO_REGISTER = "auto.register.schemas"
FAIL_INVALID = "json.fail.invalid.schema"
OPTIONS = (
    *(f"{column}.{part}" for column in COLUMNS for part in _PARTS),
    REGISTRY,
    *(f"{REGISTRY}.{part}" for part in _REGISTRY_PARTS),
    AUTO_REGISTER,
    FAIL_INVALID,
)
"""Every option of this room."""


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """The format of the column `column`: the options <column>.* and the registry's options."""

    column: str
    format: str
    schema: str | None = None
    """Text of a schema or a type, never its path."""
    errors: str = FAIL
    raw_column: str | None = None
    """The column that gets the bytes of values that cannot be read, with errors = null."""
    subject: str | None = None
    message: str | None = None
    envelope: bool = True
    registry: str | None = None
    registry_options: tuple[tuple[str, str], ...] = ()
    register: bool = True
    checked: bool = False
    """Whether JSON is checked against its JSON Schema."""

    def subject_of(self, topic: str | None) -> str | None:
        """The subject: the option's, or <topic>-<column>, which is Confluent's TopicNameStrategy."""
        return self.subject or (None if topic is None else f"{topic}-{self.column}")

    def __repr__(self) -> str:  # no credentials
        return f"ColumnFormat({self.column}.format={self.format})"


ONE_ENCODING = ("short", "int", "long", "string", "uuid")
"""Formats in which each value has one encoding."""


def has_one_encoding(options: Mapping[str, str]) -> bool:
    """Whether keys are bytes, text or another format in which each value has one encoding."""
    return _lowered(options).get("key.format", "binary").lower() in ("binary", *ONE_ENCODING)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def column_formats(options: Mapping[str, str], storage_options: Mapping[str, str] | None = None) -> list[ColumnFormat]:
    """The columns that options give a format other than binary. Other options are left alone.

    Raises InvalidOptionError for a format that is none, and options that belong to none.
    """
    values = _lowered(options)
    columns = [_column(name, values, storage_options) for name in COLUMNS]
    formats = [chosen for chosen in columns if chosen is not None]
    names = [chosen.format for chosen in formats]
    if any(chosen.checked for chosen in formats) and JSON_SCHEMA not in names:
        raise InvalidOptionError(f"Option {FAIL_INVALID} goes with the format {JSON_SCHEMA}", found=", ".join(names))
    return formats


def _column(column: str, options: Mapping[str, str], storage_options: Mapping[str, str] | None) -> ColumnFormat | None:
    values = {part: options.get(f"{column}.{part}") for part in _PARTS}
    name = (values["format"] or "binary").lower()
    if name not in FORMATS:
        raise InvalidOptionError(f"Unknown {column}.format", expected=", ".join(FORMATS), found=name)
    others = [part for part in _PARTS if part != "format" and values[part] is not None]
    if name == "binary":
        if others:
            raise InvalidOptionError(
                f"Option {column}.{others[0]} needs {column}.format", expected=", ".join(FORMATS[1:]), found="none"
            )
        return None
    errors = (values["errors"] or FAIL).lower()
    if errors not in (FAIL, NULL):
        raise InvalidOptionError(
            f"Option {column}.errors has an unknown value", expected=f"{FAIL} or {NULL}", found=errors
        )
    if values["raw.column"] is not None and errors != NULL:
        raise InvalidOptionError(f"Option {column}.raw.column goes with {column}.errors=null")
    if values["raw.column"] in RECORD_SCHEMA.names:
        raise InvalidOptionError(
            f"Option {column}.raw.column names a column that already exists",
            found=values["raw.column"],
            hint="Name another",
        )
    prefix = f"{REGISTRY}."
    return ColumnFormat(
        column,
        name,
        schema=None if values["schema"] is None else schema_text(values["schema"], storage_options),
        errors=errors,
        raw_column=values["raw.column"],
        subject=values["subject"],
        message=values["message"],
        envelope=_flag(f"{column}.schemas.enable", values["schemas.enable"]),
        registry=options.get(REGISTRY),
        registry_options=tuple(
            sorted((name.removeprefix(prefix), text) for name, text in options.items() if name.startswith(prefix))
        ),
        register=_flag(AUTO_REGISTER, options.get(AUTO_REGISTER)),
        checked=_flag(FAIL_INVALID, options.get(FAIL_INVALID), default=False),
    )


def _flag(name: str, text: str | None, default: bool = True) -> bool:
    if text is None:
        return default
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise InvalidOptionError(f"Option {name} has an unknown value", expected="true or false", found=text)


def schema_text(value: str, storage_options: Mapping[str, str] | None = None) -> str:
    """The text of a schema, which `value` is or where it says that a file has it: a path or URI of .avsc, .proto, …

    Of a file of Protobuf's descriptors, which protoc --descriptor_set_out writes, it is the base64.
    """
    stripped = value.strip()
    is_text = any(letter in stripped for letter in "\n{}<>()[]\"' ,;") and not _is_file(stripped)
    endings = (".avsc", ".proto", ".json", ".ddl", ".txt", *_DESCRIPTOR_ENDINGS)
    if is_text or not (stripped.endswith(endings) or "/" in stripped):
        return value
    directory, _, name = stripped.rpartition("/")
    try:
        content = bytes(Storage(directory or ".", dict(storage_options or {})).read(name))
        return base64.b64encode(content).decode() if name.endswith(_DESCRIPTOR_ENDINGS) else content.decode()
    except FileNotFoundError as error:
        raise InvalidOptionError(
            "The schema's file does not exist",
            path=stripped,
            hint="Give the path of the file, or the text of the schema",
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidOptionError("The schema's file is no text", path=stripped) from error


def _is_file(text: str) -> bool:
    try:
        return len(text) < _LONGEST_PATH and Path(text).is_file()
    except OSError:  # a name that is too long for the file system
        return False
