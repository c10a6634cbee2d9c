"""Another client's raw fetch, by kio: the batches of a partition as a broker gives them; and those in a log here."""

from __future__ import annotations

import socket

from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from verification.kafka_protocol.requests import answer_of, fetch_of, request
from verification.world.clock import PATIENCE_SECONDS

FETCH, FETCH_VERSION = 1, 4


def fetched_batches(address: str, topic: str, partition: int) -> bytes:
    """All whole batches of a partition from offset 0 on."""
    host, _, port = address.rpartition(":")
    found, offset, end = b"", 0, 1
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        while offset < end:  # a broker that is busy may answer nothing for a while
            asked = fetch_of(topic, offset, 4 << 20, partition=partition, wait_seconds=0.1)
            connection.sendall(request(FETCH, FETCH_VERSION, asked))
            [[one]] = [each.partitions for each in answer_of(connection, FETCH, FETCH_VERSION).responses]
            assert not one.error_code, one.error_code
            end, data = one.high_watermark, bytes(one.records or b"")
            batches = scan_batches(data, path="fetched").batches
            batches = batches.take(batches.base_offset >= offset)
            if not len(batches):
                continue
            found += b"".join(
                data[start : start + size]
                for start, size in zip(batches.byte_position.tolist(), batches.size.tolist(), strict=True)
            )
            offset = int(batches.last_offset[-1]) + 1
    return found


def kept_batches(log: LogDir, topic: str, partition: int) -> bytes:
    """The bytes of a partition's files, in order."""
    rows = log.topic(topic).snapshot.live_of(partition)
    return b"".join(log.storage.read(row.path, row.byte_position, row.log_bytes).to_pybytes() for row in rows)
