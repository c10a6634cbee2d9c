"""Dumps of Kafka's own topics, decoded, against Kafka's own dump of them and the strings that Kafka's tests expect."""

from __future__ import annotations

import base64
import io
import json
import struct
import uuid
from typing import Any

import pytest
from kio.serial import entity_writer

from spark_segments.dump import layouts
from spark_segments.dump.decoders import DECODERS, decoder
from spark_segments.dump.text import text_of
from spark_segments.kafka.internal_topics.consumer_offsets import groups_of_records
from verification.world.kafka_bytes.golden_files import GOLDEN, text

BROKER = GOLDEN / "broker-data"
TOPIC_ID = uuid.UUID("523e709f-f16a-4d78-ab10-04af559458d7")


def decoded(name: str, key: bytes | None, value: bytes | None, offset: int = 0) -> str:
    """What a dump of a record prints of its key and value."""
    entry = {"kind": "record", "offset": offset, "key": key, "value": value}
    [line] = text_of([decoder(name)(entry)], skip_record_metadata=True)
    return line


def record(kind: int, *parts: bytes | str) -> bytes:
    """A version or a type, and behind it bytes and texts with sizes of two bytes."""
    packed = (part if isinstance(part, bytes) else struct.pack(">h", len(part)) + part.encode() for part in parts)
    return struct.pack(">h", kind) + b"".join(packed)


def written(layout: layouts.MessageLayout, version: int = 0, **values: Any) -> bytes:
    """A message by kio's writer."""
    entity = layout.entity(version)
    out = io.BytesIO()
    entity_writer(entity)(out, entity(**values))
    return out.getvalue()


def test_cluster_metadata_is_that_of_kafkas_tool(segments, monkeypatch):
    monkeypatch.chdir(BROKER)
    ran = segments("dump", "--cluster-metadata-decoder", "__cluster_metadata-0/00000000000000000000.log")
    assert ran.text == text("broker-data/__cluster_metadata-0", "dump.txt").replace("fixtures/broker-data/", "")


def test_a_bootstrap_snapshot_is_decoded(segments):
    lines = segments("dump", "--cluster-metadata-decoder", BROKER / "bootstrap.checkpoint").lines
    assert lines[1] == "KRaft bootstrap snapshot"
    assert [line.partition("headerKeys: [] ")[2] for line in lines if line.startswith("|")] == [
        'SnapshotHeader {"version":0,"lastContainedLogTimestamp":0}',
        'payload: {"type":"FEATURE_LEVEL_RECORD","version":0,"data":{"name":"metadata.version","featureLevel":22}}',
        'payload: {"type":"FEATURE_LEVEL_RECORD","version":0,"data":{"name":"group.version","featureLevel":1}}',
        'SnapshotFooter {"version":0}',
    ]


def test_positions_of_groups_are_those_that_an_import_takes(segments):
    log = BROKER / "__consumer_offsets-0" / "00000000000000000000.log"
    lines = segments("dump", "--offsets-decoder", "--output", "json", log).lines
    records = [entry for line in lines if (entry := json.loads(line))["kind"] == "record"]
    found: dict[str, dict] = {}
    for entry in records:
        key, payload = entry["decoded"]["key"], entry["decoded"]["payload"]
        if key["type"] == "1" and payload != "<DELETE>":
            data = payload["data"]
            place = key["data"]["topic"], key["data"]["partition"]
            found.setdefault(key["data"]["group"], {})[place] = data["offset"], data["metadata"]
    pairs = [(base64.b64decode(entry["key"]), entry["value"] and base64.b64decode(entry["value"])) for entry in records]
    assert found == groups_of_records((key, value) for key, value in pairs if value) != {}


def test_members_of_a_group_show_what_they_subscribe_to():
    subscription = record(
        3, struct.pack(">i", 1), "foo", struct.pack(">ii", -1, 1), "foo", struct.pack(">iii", 1, 0, 0)
    )
    subscription += struct.pack(">h", 4) + b"rack"
    assignment = record(0, struct.pack(">i", 1), "foo", struct.pack(">iii", 1, 0, -1))
    known = {"memberId": "member", "groupInstanceId": "instance", "clientId": "client", "clientHost": "host"}
    known |= {"rebalanceTimeout": 1000, "sessionTimeout": 100}
    [layout] = layouts.OFFSETS[2][1]
    group = {"protocolType": "consumer", "generation": 10, "protocol": "range", "leader": "member"}

    def shown(subscription: bytes, assignment: bytes) -> str:
        [member] = layout.entity(4).__annotations__["members"].__args__[:1]
        members = (member(**known, subscription=subscription, assignment=assignment),)
        value = written(layout, 4, **group, currentStateTimestamp=-1, members=members)
        return decoded("offsets", record(2, "group"), struct.pack(">h", 4) + value)

    head = '| key: {"type":"2","data":{"group":"group"}} payload: {"version":"4","data":{"protocolType":"consumer",'
    head += '"generation":10,"protocol":"range","leader":"member","currentStateTimestamp":-1,"members":[{"memberId":'
    head += '"member","groupInstanceId":"instance","clientId":"client","clientHost":"host","rebalanceTimeout":1000,'
    head += '"sessionTimeout":100,"subscription":'
    partitions = '[{"topic":"foo","partitions":[0]}]'
    assert shown(subscription, assignment) == (
        f'{head}{{"topics":["foo"],"userData":null,"ownedPartitions":{partitions},"generationId":0,"rackId":"rack"}},'
        f'"assignment":{{"assignedPartitions":{partitions},"userData":null}}}}]}}}}'
    )
    assert shown(b"Subscription", b"Assignment") == f'{head}"U3Vic2NyaXB0aW9u","assignment":"QXNzaWdubWVudA=="}}]}}}}'


ERROR = "key: Error at offset 7, skipping. "
METADATA_ERROR = "payload: Error at 7, skipping. "
EPOCH = struct.pack(">hi", 0, 10) + b"\0"
GROUP_KEY = '{"type":"3","data":{"groupId":"group"}}'
SNAPSHOT = struct.pack(">hHiiq", 0, 0, 0, 0, 0)
BATCHES = b"\x02" + struct.pack(">qqbh", 0, 4, 2, 1) + b"\0\0"
SHARE_KEY = struct.pack(">h", 3) + b"gs1" + TOPIC_ID.bytes + bytes(4)
SHARE_DATA = '"data":{"groupId":"gs1","topicId":"Uj5wn_FqTXirEASvVZRY1w","partition":0}}'
BATCHES_SHOWN = '"stateBatches":[{"firstOffset":0,"lastOffset":4,"deliveryState":2,"deliveryCount":1}]}}'
CLASSIC = b"\x01\x00\x0c\x01" + struct.pack(">i", 45000) + b"\x02\x02a\x02b\0\0"


@pytest.mark.parametrize(
    ("name", "key", "value", "shown"),
    [
        ("offsets", record(3, "group"), EPOCH, f'key: {GROUP_KEY} payload: {{"version":"0","data":{{"epoch":10}}}}'),
        ("offsets", record(3, "group"), None, f"key: {GROUP_KEY} payload: <DELETE>"),
        ("offsets", record(32767, "group"), EPOCH, "key: Unknown record type 32767 at offset 7, skipping."),
        ("offsets", record(3, "group"), EPOCH + b"x", f"{ERROR}1 bytes behind the message"),
        ("offsets", record(3, "group"), b"\0\1", f"{ERROR}version 1, of which nothing is known"),
        ("offsets", None, EPOCH, f"{ERROR}the key is null"),
        (
            "offsets",
            record(5, "group", "m"),
            struct.pack(">h", 0) + b"\0\0\x02c\x02h\x01\0" + struct.pack(">i", -1) + b"\0" + CLASSIC,
            'key: {"type":"5","data":{"groupId":"group","memberId":"m"}} payload: {"version":"0","data":{'
            '"instanceId":null,"rackId":null,"clientId":"c","clientHost":"h","subscribedTopicNames":[],"subscribedTopicRegex":null,'
            '"rebalanceTimeoutMs":-1,"serverAssignor":null,"classicMemberMetadata":{"sessionTimeoutMs":45000,'
            '"supportedProtocols":[{"name":"a","metadata":"Yg=="}]}}}',
        ),
        (
            "transaction-log",
            record(0, "tx"),
            struct.pack(">hqhib", 1, 5, 2, 60000, 1) + b"\0" + struct.pack(">qq", 8, 9) + b"\x01\x02\x02\0\x02",
            'key: {"type":"0","data":{"transactionalId":"tx"}} payload: {"version":"1","data":{"producerId":5,'
            '"producerEpoch":2,"transactionTimeoutMs":60000,"transactionStatus":1,"transactionPartitions":null,'
            '"transactionLastUpdateTimestampMs":8,"transactionStartTimestampMs":9,"clientTransactionVersion":2}}',
        ),
        (
            "share-group-state",
            record(0, SHARE_KEY),
            SNAPSHOT + BATCHES,
            f'key: {{"type":"0",{SHARE_DATA} payload: {{"version":"0","data":{{"snapshotEpoch":0,"stateEpoch":0,'
            f'"leaderEpoch":0,"startOffset":0,{BATCHES_SHOWN}',
        ),
        (
            "share-group-state",
            record(0, SHARE_KEY),
            SNAPSHOT + struct.pack(">qq", 8, 9) + BATCHES,
            f'key: {{"type":"0",{SHARE_DATA} payload: {{"version":"0","data":{{"snapshotEpoch":0,"stateEpoch":0,'
            f'"leaderEpoch":0,"startOffset":0,"createTimestamp":8,"writeTimestamp":9,{BATCHES_SHOWN}',
        ),
        ("cluster-metadata", None, b"\0", f"{METADATA_ERROR}frame version 0, of which nothing is known"),
        ("cluster-metadata", None, b"\1\x7f\0", f"{METADATA_ERROR}record type 127, of which nothing is known"),
        ("cluster-metadata", None, b"\1\2\0\x07or", f"{METADATA_ERROR}cut"),
        ("remote-log-metadata", None, None, "payload: Error at offset 7, skipping. the value is null"),
    ],
)  # fmt: skip
def test_a_record_is_what_kafkas_tool_prints_or_says_that_it_is_none(name, key, value, shown):
    assert decoded(name, key, value, 7) == f"| {shown}"


def test_remote_log_metadata_is_what_kafkas_classes_print():
    def shown(kind: int, **values: Any) -> str:
        value = written(layouts.REMOTE_LOG[kind][1], **values)
        return decoded("remote-log-metadata", None, bytes([1, kind, 0]) + value).removeprefix("| payload: ")

    entities = [layout.entity(0).__annotations__ for _, layout in layouts.REMOTE_LOG.values()]
    segment_id = entities[0]["remoteLogSegmentId"]
    topic = segment_id.__annotations__["topicIdPartition"](name="foo", id=TOPIC_ID, partition=1)
    epoch = entities[0]["segmentLeaderEpochs"].__args__[0]
    segment = {"startOffset": 0, "endOffset": 9, "brokerId": 1, "maxTimestampMs": 7, "eventTimestampMs": 8}
    segment |= {"segmentSizeInBytes": 5, "customMetadata": b"abc", "remoteLogSegmentState": 1}
    epochs = (epoch(leaderEpoch=0, offset=0), epoch(leaderEpoch=2, offset=5))
    place = "topicIdPartition=Uj5wn_FqTXirEASvVZRY1w:foo-1, id=Uj5wn_FqTXirEASvVZRY1w"
    segment_0 = segment_id(topicIdPartition=topic, id=TOPIC_ID)
    assert shown(0, remoteLogSegmentId=segment_0, segmentLeaderEpochs=epochs, **segment) == (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId=RemoteLogSegmentId{{{place}}}, startOffset=0, endOffset=9, "
        "brokerId=1, maxTimestampMs=7, eventTimestampMs=8, segmentLeaderEpochs={0=0, 2=5}, segmentSizeInBytes=5, "
        "customMetadata=Optional[CustomMetadata{3 bytes}], state=COPY_SEGMENT_FINISHED}"
    )
    id_1 = entities[1]["remoteLogSegmentId"]
    topic_1 = id_1.__annotations__["topicIdPartition"](name="foo", id=TOPIC_ID, partition=1)
    update = {"brokerId": 1, "eventTimestampMs": 8, "customMetadata": None, "remoteLogSegmentState": 9}
    assert shown(1, remoteLogSegmentId=id_1(topicIdPartition=topic_1, id=TOPIC_ID), **update) == (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId=RemoteLogSegmentId{{{place}}}, "
        "customMetadata=Optional.empty, state=9, eventTimestampMs=8, brokerId=1}"
    )
    topic_2 = entities[2]["topicIdPartition"](name="foo", id=TOPIC_ID, partition=1)
    assert shown(2, topicIdPartition=topic_2, brokerId=1, eventTimestampMs=8, remotePartitionDeleteState=2) == (
        "RemotePartitionDeleteMetadata{topicPartition=Uj5wn_FqTXirEASvVZRY1w:foo-1, state=DELETE_PARTITION_FINISHED, "
        "eventTimestampMs=8, brokerId=1}"
    )
    assert shown(3, segmentId=TOPIC_ID, segmentLeaderEpochs=(), **segment).startswith(
        "RemoteLogSegmentMetadataSnapshot{segmentId=Uj5wn_FqTXirEASvVZRY1w, startOffset=0, endOffset=9, maxTim"
    )


def test_a_dump_has_one_decoder_and_goes_on_with_records_of_another_topic(segments, run):
    log = BROKER / "orders-0" / "00000000000000000000.log"
    ran = run("dump", "--offsets-decoder", "--share-group-state-decoder", log)
    assert ran.code == 1 and "A dump has one decoder" in ran.error
    for name in DECODERS:
        lines = [line for line in segments("dump", f"--{name}-decoder", log).lines if line.startswith("|")]
        assert lines and all("skipping." in line for line in lines)
