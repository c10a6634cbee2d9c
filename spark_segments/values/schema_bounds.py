"""Bounds of schemas, which others write: a few lines of a schema may be more fields than any machine has room for.

A name that a schema uses twice stands for all its fields twice, so 30 records may be a thousand million fields. Fields
are counted as in the expanded schema, without expanding it, for all kinds of schemas.
"""

from __future__ import annotations

import json
from typing import Any

from spark_segments.errors import InvalidOptionError, reason_of

MOST_FIELDS = 10_000
"""Fields, items and branches of a schema, written out."""
MOST_DEPTH = 64
"""Types within types."""

_HINT = "Read the column as binary, or give value.schema as Spark's DDL with the fields to read"


def check_bounds(name: str, fields: int, depth: int) -> None:
    """Raises InvalidOptionError for a part of a schema of so many fields, or of such a depth."""
    if fields > MOST_FIELDS:
        raise InvalidOptionError(
            f"The schema is too large at {name}", expected=f"at most {MOST_FIELDS:,} fields", found="more", hint=_HINT
        )
    if depth > MOST_DEPTH:
        raise InvalidOptionError(
            f"The schema is nested too deeply at {name}", expected=f"at most {MOST_DEPTH} levels", hint=_HINT
        )


def compact(value: object) -> str:
    """JSON without white space."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def json_of(text: str, what: str) -> Any:
    """The JSON value of a schema's text. Raises InvalidOptionError that says it is no `what`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(f"The text is no {what} ({reason_of(error)})", found=text[:200]) from None
