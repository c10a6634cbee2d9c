"""Typed keys and values of a log directory. Formats and registries are imported when a format is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from spark_segments.log.typed.columns import Log, TypedColumns
    from spark_segments.values.batches import Decoder, Encoder
    from spark_segments.values.registries.registry import Registry


class TypedLog:
    """The part of `LogDir` that turns options such as value.format into decoders, encoders and registries."""

    def value_readers(self: Log, topic: str, formats: Mapping[str, str], version: int | None = None) -> list[Decoder]:
        """The decoders of a topic's keys and values by `formats`. Raises InvalidOptionError, RegistryError."""
        return typed_columns(self).readers(topic, formats, version)

    def value_writers(
        self: Log, topic: str | None, formats: Mapping[str, str], types: Mapping[str, pa.DataType | None]
    ) -> list[Encoder]:
        """The encoders of columns of these types by `formats`; None: the schema's type. Registers a new schema."""
        return typed_columns(self).writers(topic, formats, types)

    def registry(self: Log, formats: Mapping[str, str]) -> Registry:
        """The schema registry that schema.registry names, by default the topic `_schemas` of this log directory."""
        return typed_columns(self).registry(formats)


def typed_columns(log: Log) -> TypedColumns:
    """The typed columns of a log directory's topics."""
    from spark_segments.log.typed.columns import TypedColumns  # imports formats and registries, which few reads need

    return TypedColumns(log)
