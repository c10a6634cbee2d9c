"""The keys of records as a field: what the index of a topic's keys is made on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class KeyField:
    """The bytes of keys: see `log.typed.RecordField`. Its name is empty: a list of keys' runs has no `on`."""

    on: str = ""
    columns: tuple[str, ...] = ("key",)
    formats: Mapping[str, str] = field(default_factory=dict, hash=False)
    fingerprint: str = ""
    may_decode_later: bool = False

    def entries(self, batch: pa.RecordBatch) -> tuple[np.ndarray, pa.Array, np.ndarray]:
        """(rows that have a key, their keys, no rows)"""
        keys = batch.column("key")
        nothing = np.zeros(0, np.int64)
        if not keys.null_count:
            return np.arange(len(keys)), keys, nothing
        return np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False)), keys.drop_null(), nothing

    def encoded(self, values: Sequence[object]) -> list[bytes]:
        """The values, which are bytes."""
        return [value for value in values if isinstance(value, bytes)]


KEY_FIELD = KeyField()
