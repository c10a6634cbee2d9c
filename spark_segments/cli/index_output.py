"""What commands print of the indexes of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_segments.errors import escaped
from spark_segments.quantities import human_bytes, plural


def index_lines(key_index: Mapping[str, Any] | None, field_indexes: Mapping[str, Any]) -> list[str]:
    """How far each index of a topic reaches, and its size, or why it cannot be read."""
    keys = [] if key_index is None else [_index_line("of keys", "keys", "are", key_index)]
    return keys + [_index_line(f"on {on}", on, "is", state) for on, state in field_indexes.items()]


def _index_line(name: str, what: str, verb: str, state: Mapping[str, Any]) -> str:
    if "error" in state:
        return escaped(f"the index {name} cannot be read: {state['error']}", one_line=True)
    reach = f"{state['offsets_indexed']:,} of {plural(state['offsets'], 'offset')}"
    size = f"{plural(state['runs'], 'run')}, {human_bytes(state['index_bytes'])}"
    entries = plural(state["entries"], "record" if what == "keys" else "value")
    line = f"{what} of {reach} {verb} indexed, {entries} in {size}"
    if state.get("undecodable"):
        line += f"; {plural(state['undecodable'], 'record')} could not be decoded"
    return escaped(line, one_line=True)


def short_of_index(line: Mapping[str, Any]) -> dict[str, Any]:
    """What was indexed, or would be: the bytes of a dry run are those of the log that it would read."""
    columns: dict[str, Any] = {"index": line.get("on", "keys")}
    if "start" in line:
        columns["offsets"] = f"{line['start']:,} to {line['end'] - 1:,}"
    return columns | {name: line.get(name) for name in ("entries", "index_bytes", "log_bytes")}
