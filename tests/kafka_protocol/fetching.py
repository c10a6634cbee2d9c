"""Another client's raw fetch, by kio: the batches of a partition as a broker gives them; and those in a log here."""

from __future__ import annotations

import socket
import struct
from datetime import timedelta

from kio.schema.fetch.v11 import request, response
from kio.serial import entity_reader, entity_writer

from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from tests.clock import PATIENCE_SECONDS
from tests.kafka_protocol.requests import Frame, received


def fetched_batches(address: str, topic: str, partition: int) -> bytes:
    """All whole batches of a partition from offset 0 on."""
    host, _, port = address.rpartition(":")
    found, offset, end = b"", 0, 1
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        while offset < end:  # a broker that is busy may answer nothing for a while
            connection.sendall(_request(topic, partition, offset))
            (size,) = struct.unpack(">i", received(connection, 4))
            frame = received(connection, size)
            _, begin = entity_reader(response.FetchResponse.__header_schema__)(frame, 0)
            answer, _ = entity_reader(response.FetchResponse)(frame, begin)
            [[one]] = [each.partitions for each in answer.responses]
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


def _request(topic: str, partition: int, offset: int) -> bytes:
    asked = request.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=4 << 20,
        current_leader_epoch=-1,
        log_start_offset=-1,
    )
    body = request.FetchRequest(
        replica_id=-1,
        max_wait=timedelta(milliseconds=100),
        min_bytes=1,
        max_bytes=8 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(request.FetchTopic(topic=topic, partitions=(asked,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    frame = Frame()
    header = request.FetchRequest.__header_schema__
    entity_writer(header)(frame, header(request_api_key=1, request_api_version=11, correlation_id=1, client_id="judge"))
    entity_writer(request.FetchRequest)(frame, body)
    return struct.pack(">i", len(frame.data)) + bytes(frame.data)
