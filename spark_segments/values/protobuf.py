"""Protobuf messages to Arrow and back: .proto text compiled by grpcio-tools' protoc, columns made by ptars.

A field that is not set reads as its default, or as null where Protobuf knows presence (`optional`, messages, oneof,
wrappers). Enums are text; timestamps and durations are cut to microseconds (a duration is a number of them); uint32 is
long, uint64 decimal(20, 0). On writing, null is a field that is not set, and enums are numbered: ptars itself takes a
name that it does not know for 0. A number without a name reads as its digits, and is written as that number again.
"""

from __future__ import annotations

import base64
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, MissingExtraError, reason_of
from spark_segments.storage.scratch import scratch_directory
from spark_segments.values.column_types import map_entries, portable, recast, valid_bits
from spark_segments.values.protobuf_rows import needs_rows, read_messages, type_of_message
from spark_segments.values.schema_bounds import check_bounds
from spark_segments.values.undecodable import Undecodable, refused_by_arrow

References = tuple[tuple[str, str], ...]
_ROOT = "schema.proto"
_OF_CONFLUENT = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}
"""The files that Confluent's registry has built in, with the numbers and names that it documents."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message type: its full name, its place in its file, its reader and its writer. Without them Google's library
    reads it, and nothing writes it.
    """

    name: str
    indexes: tuple[int, ...]
    type: pa.DataType
    descriptor: Any
    reader: Any
    writer: Any

    def read(self, array: pa.BinaryArray) -> pa.Array:
        """The messages as a struct. Raises Undecodable."""
        if self.reader is None:
            return read_messages(array, self.descriptor, self.type)
        try:
            batch = self.reader.array_to_record_batch(array)
        except ValueError as error:
            raise Undecodable(f"not a message {self.name} ({reason_of(error)})") from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise Undecodable(f"a message {self.name} that ptars cannot read") from None
        return recast(batch.to_struct_array(), self.type)

    def write(self, array: pa.Array) -> pa.BinaryArray:
        """Each row's message. Raises InvalidOptionError for fields that the message lacks."""
        if self.writer is None:
            raise InvalidOptionError(
                f"A message {self.name} is only read",
                expected="a message of proto2 or proto3 without groups",
                found="groups, or a file of an edition",
            )
        schema = self.writer.schema()
        if not pa.types.is_struct(array.type):
            raise InvalidOptionError(f"A message {self.name} is made from a struct column", found=array.type)
        unknown = [field.name for field in array.type if field.name not in schema.names]
        if unknown:
            raise InvalidOptionError(
                f"The message {self.name} has no such fields", expected=schema.names, found=unknown
            )
        with refused_by_arrow():
            values = recast(numbered_enums(array, self.descriptor), pa.struct(list(schema)))
        batch = pa.RecordBatch.from_arrays(values.flatten(), schema=schema)
        return self.writer.record_batch_to_array(batch).cast(pa.binary())


@lru_cache(maxsize=256)
def message_of(text: str, references: References = (), name: str | None = None) -> Message:
    """The message `name` (full, or without its package) of a .proto, by default its first."""
    file = _file(text, references)
    for indexes, descriptor in _messages(file.message_types_by_name.values(), ()):
        if name is None or name in (descriptor.full_name, descriptor.name):
            return _message(descriptor, indexes)
    names = [descriptor.full_name for _, descriptor in _messages(file.message_types_by_name.values(), ())]
    raise InvalidOptionError("The .proto has no such message", expected=", ".join(names), found=name)


@lru_cache(maxsize=256)
def message_at(text: str, references: References, indexes: tuple[int, ...]) -> Message:
    """The message at a place of a .proto, given as in the wire format. Raises Undecodable."""
    for place, descriptor in _messages(_file(text, references).message_types_by_name.values(), ()):
        if place == indexes:
            return _message(descriptor, indexes)
    raise Undecodable(f"the .proto has no message at {list(indexes)}")


def _messages(descriptors: Any, above: tuple[int, ...]) -> list[tuple[tuple[int, ...], Any]]:
    """(place, descriptor) of messages, nested messages after the top-level messages."""
    here = [((*above, at), descriptor) for at, descriptor in enumerate(descriptors)]
    inside = [message for indexes, descriptor in here for message in _messages(descriptor.nested_types, indexes)]
    return here + inside


def _message(descriptor: Any, indexes: tuple[int, ...]) -> Message:
    try:
        import ptars
    except ImportError as error:
        raise MissingExtraError("protobuf", "Protobuf values", "ptars") from error

    _check_message(descriptor, {}, ())
    # A map's entry may lack its value, which ptars can only show as null.
    units: dict[str, Any] = {
        "timestamp_unit": "us",
        "time_unit": "us",
        "duration_unit": "us",
        "map_value_nullable": True,
    }
    if not needs_rows(descriptor):
        try:
            configs = [ptars.PtarsConfig(enum_repr=enums, **units) for enums in ("string", "int32")]
            pools = (ptars.HandlerPool([descriptor.file], config=config) for config in configs)
            reader, writer = (pool.get_for_message(descriptor) for pool in pools)
        except BaseException as error:
            if not _is_panic(error):
                raise
        else:
            struct = portable(pa.struct(list(reader.schema())))
            return Message(descriptor.full_name, indexes, struct, descriptor, reader, writer)
    return Message(descriptor.full_name, indexes, type_of_message(descriptor), descriptor, None, None)


def _is_panic(error: BaseException) -> bool:
    """Whether a library in Rust has given up, which is no Exception in Python."""
    return type(error).__name__ == "PanicException"


def _check_message(descriptor: Any, counts: dict[str, int], above: tuple[str, ...]) -> int:
    """How many fields a message is, written out; a message within itself is text. Raises InvalidOptionError for too
    many.
    """
    name = descriptor.full_name
    if name in counts:
        return counts[name]
    if name in above:
        return 1
    fields = 1 + len(descriptor.fields)
    for field in descriptor.fields:
        if field.message_type is not None:
            fields += _check_message(field.message_type, counts, (*above, name))
    check_bounds(name, fields, len(above))
    counts[name] = fields
    return fields


@lru_cache(maxsize=256)
def _file(text: str, references: References) -> Any:
    """The compiled file of a .proto's text."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
    except ImportError as error:
        raise MissingExtraError("protobuf", "Protobuf values", "protobuf") from error

    files = _descriptor_set(text)
    if files is not None:
        return _pool_of(files).FindFileByName(files[-1].name)
    serialized = _serialized(text)
    if serialized is not None:
        return _linked(serialized, references)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(_compiled(text, references))
    pool = descriptor_pool.DescriptorPool()
    for file in compiled.file:
        pool.Add(file)
    return pool.FindFileByName(_ROOT)


def is_descriptor(text: str) -> bool:
    """Whether a text is the base64 of a descriptor, of a file or of several."""
    return len(text) % 4 == 0 and (_descriptor_set(text) is not None or _serialized(text) is not None)


def _descriptor_set(text: str) -> Any:
    """The files that a text is in base64, as protoc --descriptor_set_out writes them, the imported ones first; or
    None.
    """
    files = getattr(_of_base64("FileDescriptorSet", text), "file", ())
    return files if files and all(file.name.endswith(".proto") for file in files) else None


def _pool_of(files: Any) -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    names = {file.name for file in files}
    for file in files:
        missing = sorted({*file.dependency} - names)
        if missing:
            raise InvalidOptionError(
                "The descriptors lack an imported file",
                path=file.name,
                found=", ".join(missing),
                hint="Make them by protoc --include_imports",
            )
        pool.Add(file)
    return pool


def _serialized(text: str) -> Any:
    """The FileDescriptorProto that a text is in base64, as Confluent's Python client registers them, or None."""
    return _of_base64("FileDescriptorProto", text)


def _of_base64(name: str, text: str) -> Any:
    from google.protobuf import descriptor_pb2, message

    try:
        return getattr(descriptor_pb2, name).FromString(base64.b64decode(text, validate=True))
    except (ValueError, message.DecodeError):
        return None


def _linked(root: Any, references: References) -> Any:
    """A serialized file with its imports: its references, and Google's files."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    referenced = {name for name, _ in references}
    texts = "".join(f'import "{name}";' for name in root.dependency if name not in referenced and _is_built_in(name))
    if texts:
        own = descriptor_pb2.FileDescriptorSet.FromString(_compiled(f'syntax = "proto3"; {texts}', ()))
        for file in own.file[:-1]:
            pool.Add(file)
    for name, content in references:
        used = _serialized(content)
        if used is None:
            raise InvalidOptionError("A serialized .proto imports a .proto that is text", found=name)
        used.name = name
        pool.Add(used)
    pool.Add(root)
    return pool.FindFileByName(root.name)


def _compiled(text: str, references: References) -> bytes:
    """The result of protoc, run in a separate process because protoc writes its errors to standard error."""
    try:
        import grpc_tools
    except ImportError as error:
        raise MissingExtraError("protobuf", "Protobuf values", "grpcio-tools") from error

    with scratch_directory() as directory:
        for name, content in (*_OF_CONFLUENT.items(), *references, (_ROOT, text)):
            file = Path(directory, name)
            if ".." in file.parts or not file.is_relative_to(directory):
                raise InvalidOptionError(
                    "The name of an imported .proto leads out of the schema's directory", found=name
                )
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        out = Path(directory, "compiled")
        own = Path(grpc_tools.__file__).parent / "_proto"
        others = [f"-I{Path(path).parent.parent}" for path in _paths_of("google.type")]
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{directory}",
            f"-I{own}",
            *others,
            "--include_imports",
        ]
        done = subprocess.run([*command, f"--descriptor_set_out={out}", _ROOT], capture_output=True, text=True)
        if done.returncode:
            raise InvalidOptionError(f"The text is no .proto file. {done.stderr.strip()[:400]}")
        return out.read_bytes()


def _is_built_in(name: str) -> bool:
    """Whether registries take the import of a file for granted."""
    return name.startswith(("google/protobuf/", "google/type/")) or name in _OF_CONFLUENT


def _paths_of(package: str) -> list[str]:
    """Where a package lies; none where it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [] if spec is None else [*(spec.submodule_search_locations or ())]


def numbered_enums(array: pa.Array, descriptor: Any) -> pa.Array:
    """The struct of a message with int32 in place of enum names. Raises Undecodable for an unknown name."""
    if not pa.types.is_struct(array.type):
        return array
    fields = descriptor.fields_by_name
    names = [field.name for field in array.type]
    children = [
        _field(child, fields[name]) if name in fields else child
        for name, child in zip(names, array.flatten(), strict=True)
    ]
    struct = pa.struct([pa.field(name, child.type) for name, child in zip(names, children, strict=True)])
    return pa.Array.from_buffers(struct, len(array), [valid_bits(array)], children=children)


def _field(array: pa.Array, field: Any) -> pa.Array:
    t = pa.types
    message = field.message_type
    if field.enum_type is None and message is None:
        return array
    if not field.is_repeated:
        return _one(array, field)
    unsliced = pa.concat_arrays([array])  # from offset 0
    if message is not None and message.GetOptions().map_entry and t.is_map(array.type):
        items = _field(unsliced.items, message.fields_by_name["value"])
        child = map_entries(unsliced.keys, items)
        kind = pa.map_(array.type.key_type, child.type.field("value"))
    elif t.is_list(array.type):
        child = _one(unsliced.values, field)
        kind = pa.list_(pa.field("element", child.type))
    else:
        return array
    return pa.Array.from_buffers(kind, len(unsliced), [valid_bits(unsliced), unsliced.buffers()[1]], children=[child])


def _one(array: pa.Array, field: Any) -> pa.Array:
    if field.enum_type is None:
        return numbered_enums(array, field.message_type)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return array
    values = field.enum_type.values
    numbers = pa.array(np.array([value.number for value in values], np.int32))
    numbered = numbers.take(pc.index_in(array, value_set=pa.array([value.name for value in values], array.type)))
    if numbered.null_count == array.null_count:
        return numbered
    is_other = pc.and_(array.is_valid(), numbered.is_null())
    others = pc.if_else(is_other, array, pa.scalar(None, array.type))
    try:
        return pc.coalesce(numbered, others.cast(pa.int32()))
    except pa.ArrowInvalid:
        raise Undecodable(f"{field.name} is no value of the enum {field.enum_type.name}") from None
