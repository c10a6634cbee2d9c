"""The content of a segment's files, entry by entry, as Kafka's DumpLogSegments shows it.

Files are read in windows, so a dump of a large file takes little memory. Damage does not end a dump: it becomes an
entry of kind `error`, and the dump goes on with readable bytes. text.py turns entries into the lines of Kafka's tool.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator

from spark_segments.dump.decoders import DECODERS, decoder
from spark_segments.dump.entry import DumpOptions, DumpSource, Entry, error_entry, plain_path
from spark_segments.dump.index_files import (
    dump_index,
    dump_leader_epochs,
    dump_meta_properties,
    dump_offsets,
    dump_partition_metadata,
    dump_snapshot,
    dump_time_index,
    dump_txn_index,
)
from spark_segments.dump.log_file import dump_log
from spark_segments.errors import CorruptBatchError
from spark_segments.format.sidecars.checkpoints import LEADER_EPOCHS_FILE, META_PROPERTIES_FILE, PARTITION_METADATA_FILE

__all__ = ["DECODERS", "DumpOptions", "DumpSource", "Entry", "decoder", "dump_entries", "dump_json"]


def dump_entries(source: DumpSource, paths: Iterable[str], options: DumpOptions | None = None) -> Iterator[Entry]:
    """Everything in the files, in order; keys and values are bytes. Each entry has a `kind`. With a decoder a record
    has `decoded`, too: its key and payload as text, or as JSON.

    Raises FileNotFoundError for a path that is not there.
    """
    options = options or DumpOptions()
    decode = decoder(options.decoder) if options.decoder else None
    for path in paths:
        yield {"kind": "file", "file": path}
        try:
            entries = _dumper(path)(source, path, options)
            yield from entries if decode is None else map(decode, entries)
        except CorruptBatchError as error:
            yield error_entry(error)


def dump_json(source: DumpSource, paths: Iterable[str], options: DumpOptions | None = None) -> Iterator[Entry]:
    """The same entries for JSON: keys, values and header values are base64 (or None)."""
    for entry in dump_entries(source, paths, options):
        if entry["kind"] == "record":
            entry = {**entry, "key": _base64(entry["key"]), "value": _base64(entry["value"])}
            entry["headers"] = [[name, _base64(value)] for name, value in entry["headers"]]
        yield entry


def _dumper(path: str) -> Callable[[DumpSource, str, DumpOptions], Iterator[Entry]]:
    name = plain_path(path).rsplit("/", 1)[-1]
    if name.endswith("-offset-checkpoint"):
        return dump_offsets
    by_name = {
        LEADER_EPOCHS_FILE: dump_leader_epochs,
        PARTITION_METADATA_FILE: dump_partition_metadata,
        META_PROPERTIES_FILE: dump_meta_properties,
    }
    by_suffix = {
        "log": dump_log,
        "checkpoint": dump_log,  # of KRaft: record batches too
        "index": dump_index,
        "timeindex": dump_time_index,
        "snapshot": dump_snapshot,
        "txnindex": dump_txn_index,
        "leader_epoch_checkpoint": dump_leader_epochs,  # of tiered storage
    }
    return by_name.get(name) or by_suffix.get(name.rsplit(".", 1)[-1], _dump_unknown)


def _dump_unknown(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    source.size(path)
    yield {"kind": "unknown file", "file": path}


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()
