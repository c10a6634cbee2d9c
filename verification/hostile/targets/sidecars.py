"""Indexes, producer snapshots, checkpoints, shared objects and dumps; look-ups by an index that lies."""

from __future__ import annotations

import dataclasses
import json
import struct
from random import Random

import crc32c
import numpy as np

from spark_segments.dump import DECODERS, decoder, dump_entries, dump_json
from spark_segments.dump.text import text_of
from spark_segments.format.batches import scan_batches
from spark_segments.format.shared_object import RUN_DTYPE, TRAILER_BYTES, footer_bytes
from spark_segments.format.sidecars.check import OffsetIndexCheck, TimeIndexCheck
from spark_segments.format.sidecars.checkpoints import (
    leader_epochs_bytes,
    offsets_bytes,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
    partition_metadata_bytes,
)
from spark_segments.format.sidecars.index import (
    offset_index_bytes,
    parse_offset_index,
    parse_time_index,
    position_for_offset,
    time_index_bytes,
)
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    ProducerState,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.log.reading.read import read_part
from spark_segments.log.reading.scan_plan import Part, Selection
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.storage import Storage
from verification.hostile.memory_files import storage_of
from verification.hostile.mutations import mutated
from verification.hostile.targets import Run
from verification.hostile.targets.batches import batches_of_all_kinds
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.kafka_bytes.guarded import Guarded
from verification.world.kafka_bytes.segment_bytes import batches_of, rebuild
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes
from verification.world.manifest_rows import Segment

_FAR = [-(2**31), -1, 0, 1, 50, 2**31 - 1, 2**31, 2**62]


def sidecars() -> Run:
    steps = np.arange(1, 40, dtype=np.int64)
    batches = scan_batches(
        b"".join(batch_bytes([Record(b"v" * 40)], base_offset=number) for number in range(40))
    ).batches
    snapshots = [ProducerEntry(number, 1, 5, last_offset=number * 10) for number in range(6)]
    aborted = AbortedTransactions(*(np.arange(5, dtype=np.int64) * 10 for _ in dataclasses.fields(AbortedTransactions)))
    corpus = {
        "index": offset_index_bytes(steps * 10, steps * 4000) + bytes(80),
        "timeindex": time_index_bytes(steps * 1000, steps * 10) + bytes(120),
        "txnindex": txn_index_bytes(aborted),
        "snapshot": producer_snapshot_bytes(snapshots),
    }
    others, memory = list(corpus.values()), Guarded(1 << 14)

    def run(random: Random) -> None:
        kind = random.choice(list(corpus))
        data = mutated(corpus[kind], random, others)[: memory.size]
        if kind == "snapshot" and len(data) >= 6 and random.random() < 0.8:
            data = data[:2] + struct.pack(">I", crc32c.crc32c(data[6:])) + data[6:]
        view = memory.hold(data, at_start=random.random() < 0.3)
        wanted = random.choice(_FAR)
        if kind == "index":
            index = parse_offset_index(view)
            position_for_offset(index, wanted)
            OffsetIndexCheck(index, 0).add(batches)
        elif kind == "timeindex":
            times = parse_time_index(view)
            TimeIndexCheck(times, 0).add(batches)
        elif kind == "txnindex":
            found = parse_txn_index(view)
            found.mask(batches, 0)
            assert len(txn_index_bytes(found)) == len(data)
        else:
            entries = parse_producer_snapshot(view)
            state = ProducerState(tuple(entries))
            assert parse_producer_snapshot(producer_snapshot_bytes(state.entries())) is not None

    return run


def checkpoints() -> Run:
    corpus = [
        leader_epochs_bytes([(0, 0), (3, 2001), (5, 4009)]),
        offsets_bytes({("orders", 0): 17, ("a.b_c-d", 12): 2**40}),
        partition_metadata_bytes("AAAAAAAAAAAAAAAAAAAAAQ"),
        b"#\nversion=1\ncluster.id=abc\nnode.id=1\n",
    ]
    parsers = [
        parse_leader_epochs,
        lambda data: parse_offsets(data, path="x"),
        parse_partition_metadata,
        parse_meta_properties,
    ]

    def run(random: Random) -> None:
        number = random.randrange(4)
        data = mutated(corpus[number], random, corpus)
        if random.random() < 0.1:
            number = random.randrange(4)
        found = parsers[number](data)
        if number == 0:
            assert all(-(2**31) <= epoch < 2**31 and -(2**63) <= start < 2**63 for epoch, start in found)
        elif number == 1:
            assert all(-(2**31) <= partition < 2**31 and -(2**63) <= offset < 2**63
                       for (_, partition), offset in found.items())  # fmt: skip

    return run


def segment_files(count: int = 200) -> tuple[dict[str, bytes], Segment, list[int]]:
    data = b"".join(batch_bytes([Record(b"%d" % number * 8, timestamp=1000 * number + 5)], base_offset=number)
                    for number in range(count))  # fmt: skip
    batches = batches_of(data)
    index, time_index = rebuild(batches, 0, interval_bytes=400)
    stem = f"orders-0/{0:020d}.{'ab' * 16}"
    files = {f"{stem}.log": data, f"{stem}.index": index, f"{stem}.timeindex": time_index}
    row = Segment("id", 0, 0, count, f"{stem}.log", 0, len(data), len(index), len(time_index), 0, count, count, 5,
                  1000 * count, count - 1, 0, None, 0, "sealed")  # fmt: skip
    return files, row, list(range(count))


def look_ups() -> Run:
    """By an index that lies, a read gives the right records or an error, never others and never fewer."""
    files, row, _ = segment_files()

    def run(random: Random) -> None:
        suffix = random.choice((".index", ".timeindex"))
        path = row.path.replace(".log", suffix)
        data = mutated(files[path], random, [files[path]], most=2)
        changed = dataclasses.replace(row, **{f"{'time_' if suffix == '.timeindex' else ''}index_bytes": len(data)})
        storage = storage_of({**files, path: data})
        start, size = random.randrange(row.next_offset), random.randint(1, 30)
        if suffix == ".timeindex":
            SegmentFile(storage, changed).seek_time(1000 * start)
            return
        SegmentFile(storage, changed).locate(start)
        end = min(start + size, row.next_offset)
        part = Part("orders", changed, start, end, 0, changed.end_position, Selection(("offset",)))
        found = [offset for batch in read_part(storage, part) for offset in batch.column(0).to_pylist()]
        assert found == list(range(start, end)), f"read from {start}: {found[:3]}…"

    return run


def shared_objects() -> Run:
    runs = np.zeros(5, RUN_DTYPE)
    log_bytes, index_bytes = [100, 200, 61, 0, 500], [8, 0, 16, 8, 24]
    runs["partition"] = range(5)
    runs["log_bytes"], runs["index_bytes"], runs["time_index_bytes"] = log_bytes, index_bytes, 12
    runs["position"] = np.concatenate([[0], np.cumsum(log_bytes)[:-1]])
    both = np.array(index_bytes) + 12
    runs["index_position"] = sum(log_bytes) + np.concatenate([[0], np.cumsum(both)[:-1]])
    runs["offsets"] = runs["records"] = runs["batches"] = 7
    head = bytes(sum(log_bytes) + int(both.sum()))
    footer = footer_bytes("AAAAAAAAAAAAAAAAAAAAAQ", 1_700_000_000_000, runs)
    path = f"orders-shared/{0:020d}.{'cd' * 16}.log"

    def run(random: Random) -> None:
        data = mutated(footer, random, [footer, head])
        if random.random() < 0.8 and len(data) >= TRAILER_BYTES:
            content = mutated(footer[:-TRAILER_BYTES], random, [footer])
            data = content + struct.pack(">Ii8s", crc32c.crc32c(content), len(content), b"SEGRUNS\n")
            if random.random() < 0.2:
                data = mutated(data, random)
        whole = (head if random.random() < 0.8 else b"") + data
        found = read_footer(storage_of({path: whole}), path, len(whole))
        for entry in found.runs:
            assert 0 <= entry["position"] <= entry["position"] + entry["log_bytes"] <= found.byte_position
            assert 0 <= entry["index_position"] <= found.byte_position

    return run


def dumps() -> Run:
    files, row, _ = segment_files(30)
    stem = row.path.removesuffix(".log")
    files = {**files, f"{stem}.txnindex": txn_index_bytes(AbortedTransactions.of())}
    logs = batches_of_all_kinds()
    small = {
        "leader-epoch-checkpoint": leader_epochs_bytes([(0, 0), (3, 2001)]),
        "replication-offset-checkpoint": offsets_bytes({("orders", 0): 17}),
        "partition.metadata": partition_metadata_bytes("AAAAAAAAAAAAAAAAAAAAAQ"),
        "meta.properties": b"#\nversion=1\n",
        f"{stem}.snapshot": producer_snapshot_bytes([ProducerEntry(7, 1, 5, last_offset=10)]),
    }
    files |= small

    def run(random: Random) -> None:
        path = random.choice(list(files))
        data = random.choice(logs) if path.endswith(".log") and random.random() < 0.5 else files[path]
        source = storage_of({**files, path: mutated(data, random, logs)})
        if random.random() < 0.5:
            for entry in dump_json(source, [path]):
                json.dumps(entry)
        else:
            for line in text_of(dump_entries(source, [path])):
                assert isinstance(line, str)

    return run


def own_topics() -> Run:
    """Records of Kafka's own topics: each is shown decoded, or as what cannot be, and none ends a dump."""
    decoders = {name: decoder(name) for name in DECODERS}
    records: dict[str, list[tuple[bytes | None, bytes | None]]] = {name: [] for name in DECODERS}
    source = Storage(str(GOLDEN / "broker-data"))
    logs = {"offsets": "__consumer_offsets-0", "transaction-log": "__transaction_state-0"}
    logs["cluster-metadata"] = "__cluster_metadata-0"
    for name, directory in logs.items():
        for entry in dump_entries(source, [f"{directory}/{0:020}.log"]):
            if entry["kind"] == "record" and "controlType" not in entry:
                records[name].append((entry["key"], entry["value"]))
    share = bytes.fromhex("0000 0003 677331 523e709ff16a4d78ab1004af559458d7 00000000")
    snapshot = bytes(2 + 2 + 4 + 4 + 8) + b"\x02" + bytes(19) + b"\0\0"
    records["share-group-state"] = [
        (share, snapshot),
        (b"\0\1" + share[2:], snapshot[:2] + snapshot[6:]),
        (share, None),
    ]
    topic = b"\x04foo" + share[7:23] + bytes(4) + b"\0"
    segment = bytes(36) + b"\x02" + bytes(12) + b"\0" + bytes(4) + b"\x04abc\x01\0"
    records["remote-log-metadata"] = [
        (None, b"\x01\x00\x00" + topic + share[7:23] + b"\0" + segment),
        (None, b"\x01\x02\x00" + topic + bytes(13) + b"\0"),
        (None, b"\x01\x03\x00" + share[7:23] + segment),
    ]
    everything = [content for pairs in records.values() for pair in pairs for content in pair if content is not None]

    def run(random: Random) -> None:
        name = random.choice(DECODERS)
        key, value = random.choice(records[name])
        if random.random() < 0.3:
            key = None if key is None else mutated(key, random, everything)
        else:
            value = mutated(value or b"", random, everything)
        entry = {"kind": "record", "offset": 7, "key": key, "value": value, "headers": []}
        [line] = text_of([decoders[name](entry)], skip_record_metadata=True)
        assert line.startswith("| ")
        json.dumps(decoders[name](entry)["decoded"])

    return run
