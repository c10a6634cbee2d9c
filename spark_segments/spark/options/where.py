"""The option `where`: the fields by which records are read, and their values, as JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from spark_segments.spark.options.option_values import OptionValues

Values = tuple[bytes | str | int | bool | Decimal, ...]

_EXPECTED = (
    'a JSON object of fields, each once, with a value or a list of them, such as {"header.trace-id": "4bf92f"} or '
    '{"value.order.id": [7, 8]}; bytes are {"base64": …}'
)


def fields_of(values: OptionValues) -> Mapping[str, Values]:
    """{field: the values to look for}; empty where the option is absent. Records have one of the values of each field.

    Raises InvalidOptionError for what is no such object. Null is no value: records without a field are not looked for.
    """
    return values.parsed("where", _parsed, _EXPECTED) or {}


def _parsed(text: str) -> dict[str, Values]:
    fields = json.loads(text, parse_float=Decimal, object_pairs_hook=_object)
    if not isinstance(fields, dict):
        raise ValueError(text)
    return {
        name: tuple(map(_value, member if isinstance(member, list) else [member])) for name, member in fields.items()
    }


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a name that it has twice, either value could be meant."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(pairs)
    return members


def _value(member: Any) -> bytes | str | int | bool | Decimal:
    match member:
        case str() | int() | Decimal():
            return member
        case {"base64": str(encoded), **others} if not others:
            try:
                return base64.b64decode(encoded, validate=True)
            except binascii.Error:
                raise ValueError(encoded) from None
    raise ValueError(member)
