"""JSON values against their JSON Schema: what a column's type leaves out, such as patterns, ranges and required fields.

The rules are those of Confluent's serializers: the draft is that of `$schema`, `format` is not checked, and a reference
leads to a schema of the registry by its name, never to the network.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, MissingExtraError, reason_of
from spark_segments.values.undecodable import Undecodable

if TYPE_CHECKING:
    import jsonschema_rs

References = tuple[tuple[str, str], ...]


def check(values: pa.BinaryArray, text: str, references: References) -> None:
    """Checks JSON values, none of them null, value by value. Raises Undecodable with the first that is not valid."""
    validator = _validator(text, references)
    for row, value in enumerate(values.to_pylist()):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"not JSON ({reason_of(error)})", row) from None
        fault = next(validator.iter_errors(found), None)
        if fault is not None:
            rule = "/".join(map(str, fault.schema_path))  # the place in the value and the message show keys and values
            raise Undecodable(f"not valid by its JSON Schema's {rule[:200]}", row)


@lru_cache(maxsize=64)
def _validator(text: str, references: References) -> jsonschema_rs.Validator:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise MissingExtraError("jsonschema", "Checks against a JSON Schema", "jsonschema-rs") from error
    try:
        schemas = [(name, json.loads(one)) for name, one in references]
        registry = jsonschema_rs.Registry(schemas, jsonschema_rs.Draft7, _refused)
        return jsonschema_rs.validator_for(
            json.loads(text), validate_formats=False, retriever=_refused, registry=registry
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason, _, _ = str(error).partition("\n")
        raise InvalidOptionError(f"The JSON Schema cannot be used ({reason[:200]})", found=text[:200]) from error


def _refused(uri: str) -> Any:
    raise ValueError(f"the schema's references do not name {uri}")
