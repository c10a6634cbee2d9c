"""JSON Schema: the column type that a schema stands for, a schema for a column's type, and values against a schema.

A column's type leaves out patterns, ranges and required fields; checks of values have them. The rules follow
Confluent's serializers: `$schema` names the draft, `format` is not checked, and a reference names a schema of the
registry and never leads to the network.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, MissingExtraError, reason_of
from spark_segments.values.schema_bounds import MOST_DEPTH, check_bounds, json_of
from spark_segments.values.undecodable import Undecodable

if TYPE_CHECKING:
    import jsonschema_rs

_CONNECT = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "float32": pa.float32(), "bytes": pa.binary()}


def type_of_schema(text: str) -> pa.DataType:
    """The Arrow type of a schema's values. Raises InvalidOptionError where the schema allows several types."""
    try:
        root = _Root(json_of(text, "JSON Schema"))
        return _type(root.schema, root, "the value", 0)
    except (TypeError, AttributeError):
        raise InvalidOptionError("The text is no JSON Schema (a part has another type)", found=text[:200]) from None


class _Root:
    """The whole schema, which references go to, and how many of its parts were written out so far. `open_references`:
    references whose schema the part lies in.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.written = 0
        self.open_references: list[str] = []


def _type(schema: Any, root: _Root, path: str, depth: int) -> pa.DataType:
    root.written += 1
    check_bounds(path[:200], root.written, 0)
    if depth > MOST_DEPTH:
        raise _unclear(path[:200], "a schema that contains itself, or is nested too deeply")
    if not isinstance(schema, dict):
        raise _unclear(path, schema)
    if "$ref" in schema:
        return _type_of_reference(schema["$ref"], root, path, depth)
    choices = _choices(schema, path)
    if choices:
        return _type(choices[0], root, path, depth + 1)
    name = _type_name(schema, path)
    if name is None:
        return pa.string()
    hint = schema.get("connect.type")
    if hint in _CONNECT:
        return _CONNECT[hint]
    if name == "array":
        return pa.list_(pa.field("element", _type(schema.get("items"), root, f"{path}[]", depth + 1)))
    if name == "object":
        return _object(schema, root, path, depth)
    plain = {"integer": pa.int64(), "number": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
    if name not in plain:
        raise _unclear(path, name)
    return plain[name]


def _choices(schema: dict[str, Any], path: str) -> list[Any]:
    """The one schema that a value is of, beside null; none where the schema offers no choice of schemas."""
    for word in ("oneOf", "anyOf", "allOf"):
        choices = [choice for choice in schema.get(word) or () if choice != {"type": "null"}]
        if len(choices) > 1:
            raise _unclear(path, f"{word} of {len(choices)} types")
        if choices:
            return choices
    return []


def _type_name(schema: dict[str, Any], path: str) -> Any:
    """The one type that a schema names, beside null; None where it lists texts alone."""
    kinds = schema.get("type", "object" if "properties" in schema else None)
    names = [name for name in (kinds if isinstance(kinds, list) else [kinds]) if name not in ("null", None)]
    if sorted(map(str, names)) == ["integer", "number"]:
        return "number"
    if len(names) == 1:
        return names[0]
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values and all(isinstance(value, str) for value in values if value is not None):
        return None
    raise _unclear(path, kinds)


def _object(schema: dict[str, Any], root: _Root, path: str, depth: int) -> pa.DataType:
    properties = schema.get("properties")
    if not properties and isinstance(schema.get("additionalProperties"), dict):
        value = _type(schema["additionalProperties"], root, f"{path}{{}}", depth + 1)
        return pa.map_(pa.string(), pa.field("value", value))
    if properties is None:
        raise _unclear(path, "an object of any fields")
    # Confluent's converter numbers fields of a record, whose order JSON does not keep.
    fields = sorted(
        properties.items(), key=lambda item: item[1].get("connect.index", 0) if isinstance(item[1], dict) else 0
    )
    return pa.struct([pa.field(name, _type(field, root, f"{path}.{name}", depth + 1)) for name, field in fields])


def _type_of_reference(reference: str, root: _Root, path: str, depth: int) -> pa.DataType:
    target = _referred(reference, root, path)
    if reference in root.open_references or target is root.schema:
        raise _unclear(path, f"a reference to {reference}, which has this field in it")
    root.open_references.append(reference)
    kind = _type(target, root, path, depth + 1)
    root.open_references.pop()
    return kind


def _referred(reference: str, root: _Root, path: str) -> Any:
    if not reference.startswith("#"):
        raise _unclear(path, f"a reference to {reference}")
    target = root.schema
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or part not in target:
            raise _unclear(path, f"a reference to {reference}, which is not there")
        target = target[part]
    return target


def _unclear(path: str, found: object) -> InvalidOptionError:
    return InvalidOptionError(
        f"JSON Schema leaves the type of {path} open",
        found=str(found)[:200],
        hint="Give value.schema as Spark's DDL with the fields to read, such as id bigint, name string",
    )


def check_fits(kind: pa.DataType, target: pa.DataType, path: str) -> None:
    """Raises InvalidOptionError where JSON of a column of `kind` is not of the schema whose type is `target`."""
    t = pa.types
    if t.is_struct(target) and t.is_struct(kind):
        for field in kind:
            at = target.get_field_index(field.name)
            if at < 0:
                raise _misfit(f"{path}.{field.name}", field.type, "no such field")
            check_fits(field.type, target.field(at).type, f"{path}.{field.name}")
        return
    if t.is_list(target) and (t.is_list(kind) or t.is_large_list(kind)):
        check_fits(kind.value_type, target.value_type, f"{path}[]")
        return
    if t.is_map(target) and t.is_map(kind):
        check_fits(kind.item_type, target.item_type, f"{path}{{}}")
        return
    if not _holds(target, kind):
        raise _misfit(path, kind, target)


def _holds(target: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a plain type of a schema has the values of a column of `kind`."""
    t = pa.types
    if t.is_null(kind):
        return True
    if t.is_integer(target):
        return bool(t.is_integer(kind))
    if t.is_floating(target):
        return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))
    if t.is_boolean(target):
        return bool(t.is_boolean(kind))
    if t.is_string(target) or t.is_binary(target):
        return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_temporal(kind) or t.is_binary(kind))
    return False


def _misfit(path: str, kind: pa.DataType, target: object) -> InvalidOptionError:
    return InvalidOptionError(
        f"The type of {path} does not fit the JSON Schema", expected=target, found=kind, hint="Cast or drop the field"
    )


def schema_of(kind: pa.DataType, title: str) -> dict[str, Any]:
    """The schema of a column, as JSON values; every field may be null."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title} | _schema(kind)


def _schema(kind: pa.DataType) -> dict[str, Any]:
    t = pa.types
    if t.is_struct(kind):
        properties = {field.name: {"oneOf": [{"type": "null"}, _schema(field.type)]} for field in kind}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    if t.is_list(kind):
        return {"type": "array", "items": {"oneOf": [{"type": "null"}, _schema(kind.value_type)]}}
    if t.is_map(kind):
        return {"type": "object", "additionalProperties": {"oneOf": [{"type": "null"}, _schema(kind.item_type)]}}
    if t.is_boolean(kind):
        return {"type": "boolean"}
    if t.is_integer(kind):
        return {"type": "integer"}
    if t.is_floating(kind) or t.is_decimal(kind):
        return {"type": "number"}
    formats = {"date": t.is_date(kind), "time": t.is_time(kind), "date-time": t.is_timestamp(kind)}
    for name, right in formats.items():
        if right:
            return {"type": "string", "format": name}
    return {"type": "string", "connect.type": "bytes"} if t.is_binary(kind) else {"type": "string"}


References = tuple[tuple[str, str], ...]


def check_values(values: pa.BinaryArray, text: str, references: References) -> None:
    """Checks JSON values, none of them null, value by value. Raises Undecodable with the first that is not valid."""
    validator = _validator(text, references)
    for row, value in enumerate(values.to_pylist()):
        try:
            content = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"not JSON ({reason_of(error)})", row) from None
        fault = next(validator.iter_errors(content), None)
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
        schemas = [(name, json.loads(referred)) for name, referred in references]
        registry = jsonschema_rs.Registry(schemas, jsonschema_rs.Draft7, _refused)
        return jsonschema_rs.validator_for(
            json.loads(text), validate_formats=False, retriever=_refused, registry=registry
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason, _, _ = str(error).partition("\n")
        raise InvalidOptionError(f"The JSON Schema cannot be used ({reason[:200]})", found=text[:200]) from error


def _refused(uri: str) -> Any:
    raise ValueError(f"the schema's references do not name {uri}")
