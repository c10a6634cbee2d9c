"""Producer snapshots and the text files beside segments, which are read whole."""

from __future__ import annotations

from collections.abc import Iterator

from spark_segments.format.sidecars.checkpoints import (
    parse_leader_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
)
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.log.dump.entry import DumpOptions, DumpSource, Entry


def dump_snapshot(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for producer in parse_producer_snapshot(source.read(path), path=path):
        has_data = producer.last_offset >= 0
        yield {
            "kind": "producer",
            "producerId": producer.producer_id,
            "producerEpoch": producer.producer_epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": None
            if producer.current_txn_first_offset < 0
            else producer.current_txn_first_offset,
            "timestamp": producer.timestamp,
            "firstSequence": producer.first_sequence if has_data else None,
            "lastSequence": producer.last_sequence if has_data else None,
            "lastOffset": producer.last_offset if has_data else None,
            "offsetDelta": producer.offset_delta if has_data else None,
        }


def dump_leader_epochs(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for epoch, start_offset in parse_leader_epochs(source.read(path), path=path):
        yield {"kind": "leader epoch", "epoch": epoch, "startOffset": start_offset}


def dump_offsets(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for (topic, partition), offset in parse_offsets(source.read(path), path=path).items():
        yield {"kind": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def dump_partition_metadata(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    yield {"kind": "partition metadata", "topicId": parse_partition_metadata(source.read(path), path=path)}


def dump_meta_properties(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for name, value in parse_meta_properties(source.read(path), path=path).items():
        yield {"kind": "property", "name": name, "value": value}
