"""The definition of a setting: its type, its valid values, and how values are read from text and written back.

Types and their texts follow Kafka's ConfigDef: whole numbers are plain digits (no units), truth values are true or
false, lists are separated by commas. table.py lists the settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import duration_ms, size_bytes

BOOLEAN, INT, LONG, DOUBLE, STRING, LIST = "boolean", "int", "long", "double", "string", "list"
INT_MAX, LONG_MAX, DOUBLE_MAX = 2**31 - 1, 2**63 - 1, 1.7976931348623157e308

_LIMITS = {INT: (-(2**31), INT_MAX), LONG: (-(2**63), LONG_MAX)}
_NOUNS = {
    BOOLEAN: "true or false",
    INT: "a 32-bit integer",
    LONG: "a 64-bit integer",
    DOUBLE: "a number",
    STRING: "text",
    LIST: "a list separated by commas",
}


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Valid:
    """The valid values: inclusive limits of a number, single numbers beside them, or a choice of words."""

    low: float | None = None
    high: float | None = None
    also: tuple[int, ...] = ()
    words: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        if self.words:
            return all(word in self.words for word in ([value] if isinstance(value, str) else value))
        if not isinstance(value, int | float) or value in self.also:
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.words:
            return ", ".join(self.words)
        limits = ""
        if self.low is not None:
            limits = f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
        return " or ".join([str(number) for number in self.also] + ([limits] if limits else []))


@dataclass(frozen=True, slots=True)
class Synonym:
    """A setting's name in the defaults file. A value under this name times `factor` is in the setting's unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration key. `server`: its names in the defaults file; the first name present wins (ms before hours).

    `has_effect` is False for keys that only a broker uses: they are accepted, kept and shown.
    """

    name: str
    type: str
    default: Any
    valid: Valid
    doc: str
    server: tuple[Synonym, ...] = ()
    has_effect: bool = True

    @property
    def expected(self) -> str:
        """The valid values, in words."""
        limits = str(self.valid)
        if self.valid.words:
            return f"one of {limits}" if self.type == STRING else f"{_NOUNS[self.type]} of {limits}"
        return f"{_NOUNS[self.type]}, {limits}" if limits else _NOUNS[self.type]

    def parse(self, value: Any) -> Any:
        """The typed value of a text or a Python value. Lists become frozensets. Raises InvalidOptionError."""
        parsed = read_value(self.type, value)
        if parsed is None or not self.valid.accepts(parsed):
            raise self.refusal(value)
        return parsed

    def refusal(self, value: Any, name: str | None = None) -> InvalidOptionError:
        """The error for an invalid value. `name`: the name by which the user gave the setting."""
        name = name or self.name
        hint = plain_number_hint(name, value) if isinstance(value, str) else None
        return InvalidOptionError(f"Invalid value for {name}", expected=self.expected, found=repr(value), hint=hint)


def read_value(kind: str, value: Any) -> Any:
    """Reads a value as Kafka reads a value of type `kind`. None where the value is not of that type."""
    if isinstance(value, str):
        value = value.strip()
    if kind == BOOLEAN:
        return _read_boolean(value)
    if isinstance(value, bool):  # which Python counts as an integer
        return None
    if kind in _LIMITS:
        return _read_integer(value, *_LIMITS[kind])
    if kind == DOUBLE:
        return _read_double(value)
    if kind == STRING:
        return value if isinstance(value, str) else None
    return _read_list(value)


def _read_boolean(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _read_integer(value: Any, low: int, high: int) -> int | None:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and low <= value <= high else None


def _read_double(value: Any) -> float | None:
    if isinstance(value, str) and _DOUBLE.fullmatch(value):
        value = float(value)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _read_list(value: Any) -> frozenset[str] | None:
    if isinstance(value, str):
        return frozenset(re.split(r"\s*,\s*", value)) if value else frozenset()
    if not isinstance(value, Iterable):
        return None
    words = frozenset(value)
    return words if all(isinstance(word, str) for word in words) else None


def render_value(value: Any) -> str:
    """A typed value as Kafka writes it: `true`, `0.5`, `compact,delete` (lists in alphabetical order)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return str(value)


def _java_double(value: float) -> str:
    # Java and Python both write the fewest digits that tell a double from its neighbours. Java's scientific notation
    # begins at other magnitudes and has another form.
    number = Decimal(repr(value)).normalize()
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{number:f}"
        return plain if "." in plain else f"{plain}.0"
    sign, digits, exponent = number.as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{int(exponent) + len(digits) - 1}"


def plain_number_hint(name: str, text: str) -> str | None:
    """A hint for a size or a time with a unit ("1 GiB", "7d"): the plain number that Kafka takes instead."""
    if name.endswith(".ms"):
        parse = duration_ms
        noun = "milliseconds"
    elif "bytes" in name or name.endswith(".size"):
        parse = partial(size_bytes, kilobyte=1024)
        noun = "bytes"
    else:
        return None
    try:
        return f"It is a plain number of {noun}: write {parse(text)}"
    except InvalidOptionError:
        return None
