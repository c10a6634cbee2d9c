"""A scan for a condition of an engine: fewer offsets, and those of some keys where it asks for these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_segments.values.format_options import has_one_encoding

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Scan


def narrowed(log: LogDir, scan: Scan, condition: pc.Expression, formats: Mapping[str, str] | None) -> Scan:
    """The same scan of fewer records, with all for which the condition holds: it still has others.

    Where the condition holds for some keys alone, the index of keys says where these are. `formats`: those of the scan.
    Keys of a format in which a value has several encodings are not looked for: which of them is in the log, only a
    scan shows.
    """
    scan = scan.where(condition)
    keys = scan.keys_of(condition)
    if keys is None:
        return scan
    are_typed = not all(isinstance(key, bytes) for key in keys)
    if are_typed and not has_one_encoding(formats or {}):
        return scan
    return scan.of_keys(log.values.key_bytes(scan.snapshot.topic, [*keys], formats or {}), log.key_offsets)
