"""What a user can do about an index that look-ups do not use: commands, as a shell takes them, and errors with them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from spark_segments.errors import InvalidOptionError
from spark_segments.keys.index_list import IndexList
from spark_segments.log import RecordField

_LONGEST_SHOWN = 80
"""Characters of an option's value, in an error. An address of a registry is shown whole."""

_OPTIONS = {
    "key.format": "--key-format",
    "value.format": "--value-format",
    "value.schema": "--value-schema",
    "schema.registry": "--schema-registry",
}


def index_command(topic: str, on: str, formats: Mapping[str, str] | None = None, *, drop: bool = False) -> str:
    """The command that builds the index on a field, "" for keys, or drops it. LOG_DIR stands for the log directory."""
    words = ["segments index LOG_DIR", shlex.quote(topic)]
    words += ["--drop"] if drop else []
    words += ["--on", shlex.quote(on)] if on else []
    for name, text in (formats or {}).items():
        is_shown = len(text) <= _LONGEST_SHOWN or name == "schema.registry"
        value = shlex.quote(text) if is_shown else "…"
        words += [_OPTIONS[name], value] if name in _OPTIONS else ["--property", f"{name}={value}"]
    return " ".join(words)


def rebuild_commands(topic: str, index_list: IndexList) -> str:
    """The two commands that build an index again from the beginning."""
    on = index_list.on
    build = index_command(topic, on, index_list.formats)
    return f"{index_command(topic, on, drop=True)}, then {build}, builds it again"


def stale_index_error(topic: str, index_list: IndexList, field: RecordField) -> InvalidOptionError:
    """The error for an index that was decoded in another way than a field is."""
    formats, asked = index_list.formats, field.formats
    names = sorted(name for name in {*formats, *asked} if formats.get(name) != asked.get(name))
    expected = found = None
    if names:
        what = "has other formats"
        expected, found = _shown(names, formats), _shown(names, asked)
    elif field.may_decode_later:
        what = "was built with another schema: the schema of the subject is new"
    else:
        what = "was built with another schema, or by another version of spark-segments"
    command = index_command(topic, field.on, asked)
    hint = f"Until it is built again, look-ups scan the log: {command}"
    return InvalidOptionError(f"The index on {field.on} {what}", expected=expected, found=found, hint=hint)


def unusable_formats_error(topic: str, index_list: IndexList, error: Exception) -> InvalidOptionError:
    """The error for formats that an index remembers, and that do not open any more, or not without credentials."""
    on, formats = index_list.on, index_list.formats
    registry = formats.get("schema.registry")
    source = f", with the registry {registry}," if registry else ""
    return InvalidOptionError(
        f"The formats{source} that the index on {on} remembers cannot be used: {error}",
        hint=f"Build it with formats that can, and with credentials: {index_command(topic, on, formats)}",
    )


def _shown(names: list[str], formats: Mapping[str, str]) -> str:
    """Some options in short."""
    texts = {name: formats.get(name, "none") for name in names}
    return ", ".join(
        f"{name} {text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + '…'}" for name, text in texts.items()
    )
