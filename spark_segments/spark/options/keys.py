"""The option `keys`: the keys whose records are read, as JSON."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from spark_segments.log.key_offsets import Key
from spark_segments.spark.options.option_values import OptionValues

_EXPECTED = (
    """a JSON list of text, or numbers with key.format, or {"base64": …}, such as ["user-7", {"base64": "AAE="}]"""
)


def keys_of(values: OptionValues) -> tuple[Key, ...] | None:
    """The keys, each once; None: the option is absent, and records of all keys are read. An empty list has no records.

    Raises InvalidOptionError for what is no list of keys. Null is none: records without a key are not looked for.
    """
    return values.parsed("keys", _parsed, _EXPECTED)


def _parsed(text: str) -> tuple[Key, ...]:
    members = json.loads(text)
    if not isinstance(members, list):
        raise ValueError(text)
    return tuple(dict.fromkeys(map(_key, members)))


def _key(member: Any) -> Key:
    match member:
        case str(text):
            return text
        case int(number) if not isinstance(number, bool):
            return number
        case {"base64": str(encoded), **others} if not others:
            try:
                return base64.b64decode(encoded, validate=True)
            except binascii.Error:
                raise ValueError(encoded) from None
    raise ValueError(member)
