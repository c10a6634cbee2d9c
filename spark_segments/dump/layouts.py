"""The fields of the messages in Kafka's internal topics, as classes that kio reads.

kio has the messages of requests, of responses and of a group's members, but not the records of topics. A layout here is
a class of kio's in one line: names and types in their order. `3+` behind a type: from that version on; `1-1`: in
version 1 alone; `?`: null may stand for it; `@0=-1`: a tagged field with its tag and default.
"""

from __future__ import annotations

import re
import types
import uuid
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, make_dataclass
from functools import cache
from typing import Any

from kio.static.constants import EntityType
from kio.static.primitive import f64, i8, i16, i32, i64, u16

NEVER = 1 << 15
"""Above all versions."""

_TYPES: dict[str, Any] = {"string": str, "bytes": bytes, "bool": bool, "uuid": uuid.UUID | None}
_TYPES |= {"int8": i8, "int16": i16, "int32": i32, "int64": i64, "uint16": u16, "float64": f64}
_TOKEN = re.compile(
    r"(?P<word>[A-Za-z]\w*)|(?P<from>\d+)(?:\+|-(?P<to>\d+))|@(?P<tag>\d+)=(?P<default>\S*[^\s,])|[\[\]{}?,]"
)


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """The fields of a message, its newest version, and the first one that is flexible: with tags and compact sizes."""

    fields: str
    newest: int = 0
    flexible: int = 0

    def entity(self, version: int) -> Any:
        """kio's class of a version. Raises ValueError for a version that is not known."""
        if not 0 <= version <= self.newest:
            raise ValueError(f"version {version}, of which nothing is known")
        return _entity(self, version)


@cache
def _entity(layout: MessageLayout, version: int) -> Any:
    return _Classes(layout, version).made()


class _Classes:
    """Reads a layout's text from left to right, and makes the classes of a version."""

    def __init__(self, layout: MessageLayout, version: int) -> None:
        self._version = version
        self._common = {"__version__": i16(version), "__flexible__": version >= layout.flexible}
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(layout.fields)
        self._token = next(self._tokens, None)

    def made(self, kind: EntityType = EntityType.data) -> Any:
        fields: list[Any] = []
        while self._token is not None and self._token["word"]:
            name = self._token["word"]
            self._step()
            fields += self._field(name)
            self._passed(",")
        namespace = {"__type__": kind, **self._common}
        return make_dataclass("Message", fields, frozen=True, slots=True, kw_only=True, namespace=namespace)

    def _field(self, name: str) -> Iterator[tuple[str, Any, Any]]:
        metadata: dict[str, Any] = {}
        hint = self._type(metadata)
        first = 0
        last = NEVER
        default = MISSING
        if self._token is not None and self._token["from"]:
            first = int(self._token["from"])
            last = int(self._token["to"] or NEVER)
            self._step()
        if self._passed("?"):
            hint = hint | None
        if self._token is not None and self._token["tag"]:
            metadata["tag"] = int(self._token["tag"])
            default = _default(self._token["default"])
            self._step()
        if first <= self._version <= last:
            yield name, hint, field(metadata=metadata, default=default)

    def _type(self, metadata: dict[str, Any]) -> Any:
        if self._passed("["):
            element = self._type(metadata)
            self._passed("]")
            return types.GenericAlias(tuple, (element, ...))
        if self._passed("{"):
            nested = self.made(EntityType.nested)
            self._passed("}")
            return nested
        assert self._token is not None
        metadata["kafka_type"] = self._token["word"]
        self._step()
        return _TYPES[metadata["kafka_type"]]

    def _passed(self, mark: str) -> bool:
        is_there = self._token is not None and self._token[0] == mark
        if is_there:
            self._step()
        return is_there

    def _step(self) -> None:
        self._token = next(self._tokens, None)


def _default(text: str) -> Any:
    return {"null": None, "()": ()}[text] if text in ("null", "()") else int(text)


_GROUP = "groupId string"
_MEMBER = "groupId string, memberId string"
_PARTITIONS = "[{topicId uuid, partitions [int32]}]"
_TOPICS = "topics [{topicId uuid, topicName string, numPartitions int32, "
_TOPICS += "partitionMetadata [{partition int32, racks [string]}]}]"
_EPOCH = "epoch int32, metadataHash int64 @0=0"
_NAMES = "subscribedTopicNames [string]"
_CLIENT = "rackId string ?, clientId string, clientHost string"
_ASSIGNMENT = "memberEpoch int32, previousMemberEpoch int32, state int8"

_OFFSET = "offset int64, leaderEpoch int32 3+, metadata string, commitTimestamp int64, expireTimestamp int64 1-1"
_CLASSIC_MEMBER = """memberId string, groupInstanceId string 3+ ?, clientId string, clientHost string,
    rebalanceTimeout int32 1+, sessionTimeout int32, subscription bytes, assignment bytes"""
_CLASSIC_GROUP = f"""protocolType string, generation int32, protocol string ?, leader string ?,
    currentStateTimestamp int64 2+, members [{{{_CLASSIC_MEMBER}}}]"""
_CONSUMER = f"""instanceId string ?, {_CLIENT}, {_NAMES}, subscribedTopicRegex string ?, rebalanceTimeoutMs int32,
    serverAssignor string ?, classicMemberMetadata {{sessionTimeoutMs int32,
    supportedProtocols [{{name string, metadata bytes}}]}} ? @0=null"""
_STATE_PARTITIONS = """initializedTopics [{topicId uuid, topicName string, partitions [int32]}],
    deletingTopics [{topicId uuid, topicName string}]"""

_OFFSET_KEY = "group string, topic string, partition int32"
_OFFSET_VALUE = MessageLayout(_OFFSET, 4, 4)

OFFSETS: dict[int, tuple[str, tuple[MessageLayout, ...]]] = {
    0: (_OFFSET_KEY, (_OFFSET_VALUE,)),
    1: (_OFFSET_KEY, (_OFFSET_VALUE,)),
    2: ("group string", (MessageLayout(_CLASSIC_GROUP, 4, 4),)),
    3: (_GROUP, (MessageLayout(_EPOCH),)),
    4: (_GROUP, (MessageLayout(_TOPICS),)),
    5: (_MEMBER, (MessageLayout(_CONSUMER),)),
    6: (_GROUP, (MessageLayout("assignmentEpoch int32"),)),
    7: (_MEMBER, (MessageLayout(f"topicPartitions {_PARTITIONS}"),)),
    8: (
        _MEMBER,
        (MessageLayout(f"{_ASSIGNMENT}, assignedPartitions {_PARTITIONS}, partitionsPendingRevocation {_PARTITIONS}"),),
    ),
    9: (_GROUP, (MessageLayout(_TOPICS),)),
    10: (_MEMBER, (MessageLayout(f"{_CLIENT}, {_NAMES}"),)),
    11: (_GROUP, (MessageLayout(_EPOCH),)),
    12: (_GROUP, (MessageLayout("assignmentEpoch int32"),)),
    13: (_MEMBER, (MessageLayout(f"topicPartitions {_PARTITIONS}"),)),
    14: (_MEMBER, (MessageLayout(f"{_ASSIGNMENT}, assignedPartitions {_PARTITIONS}"),)),
    15: (_GROUP, (MessageLayout(_STATE_PARTITIONS),)),
    16: (
        "groupId string, regularExpression string",
        (MessageLayout("topics [string], version int64, timestamp int64"),),
    ),
}
"""{version of a key, which is the type of its record: (its fields, layouts of its values)} in __consumer_offsets."""

TRANSACTIONS = {
    0: (
        "transactionalId string",
        (
            MessageLayout(
                """producerId int64, previousProducerId int64 1+ @0=-1, nextProducerId int64 1+ @1=-1,
                producerEpoch int16, transactionTimeoutMs int32, transactionStatus int8,
                transactionPartitions [{topic string, partitionIds [int32]}] ?,
                transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64,
                clientTransactionVersion int16 1+ @2=0""",
                1,
                1,
            ),
        ),
    )
}
"""The same of __transaction_state."""

_SHARE_KEY = "groupId string, topicId uuid, partition int32"
_BATCHES = "stateBatches [{firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16}]"
_SNAPSHOT = "snapshotEpoch uint16, stateEpoch int32, leaderEpoch int32, startOffset int64"

SHARE_STATE = {
    # Kafka put the two timestamps into version 0 while it was new. The bytes fit one of the two.
    0: (
        _SHARE_KEY,
        (
            MessageLayout(f"{_SNAPSHOT}, {_BATCHES}"),
            MessageLayout(f"{_SNAPSHOT}, createTimestamp int64, writeTimestamp int64, {_BATCHES}"),
        ),
    ),
    1: (_SHARE_KEY, (MessageLayout(f"snapshotEpoch uint16, leaderEpoch int32, startOffset int64, {_BATCHES}"),)),
}
"""The same of __share_group_state."""

_ENDPOINTS = "endPoints [{name string, host string, port uint16, securityProtocol int16}]"
_FEATURES = "features [{name string, minSupportedVersion int16, maxSupportedVersion int16}]"
_ACL = """id uuid, resourceType int8, resourceName string, patternType int8, principal string, host string,
    operation int8, permissionType int8"""
_TOKEN_FIELDS = """owner string, requester string, renewers [string], issueTimestamp int64, maxTimestamp int64,
    expirationTimestamp int64, tokenId string"""
_BROKER = f"""brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch int64, {_ENDPOINTS},
    {_FEATURES}, rack string ?, fenced bool, inControlledShutdown bool 1+, logDirs [uuid] 3+ @0=()"""
_PARTITION = """partitionId int32, topicId uuid, replicas [int32], isr [int32], removingReplicas [int32],
    addingReplicas [int32], leader int32, leaderRecoveryState int8 @0=0, leaderEpoch int32, partitionEpoch int32,
    directories [uuid] 1+, eligibleLeaderReplicas [int32] 2+ ? @1=null, lastKnownElr [int32] 2+ ? @2=null"""
_PARTITION_CHANGE = """partitionId int32, topicId uuid, isr [int32] ? @0=null, leader int32 @1=-2,
    replicas [int32] ? @2=null, removingReplicas [int32] ? @3=null, addingReplicas [int32] ? @4=null,
    leaderRecoveryState int8 @5=-1, directories [uuid] 1+ ? @8=null, eligibleLeaderReplicas [int32] 2+ ? @6=null,
    lastKnownElr [int32] 2+ ? @7=null"""
_BROKER_CHANGE = """brokerId int32, brokerEpoch int64, fenced int8 @0=0, inControlledShutdown int8 1+ @1=0,
    logDirs [uuid] 2+ @2=()"""

METADATA = {
    0: ("REGISTER_BROKER_RECORD", MessageLayout(_BROKER, 3)),
    1: ("UNREGISTER_BROKER_RECORD", MessageLayout("brokerId int32, brokerEpoch int64")),
    2: ("TOPIC_RECORD", MessageLayout("name string, topicId uuid")),
    3: ("PARTITION_RECORD", MessageLayout(_PARTITION, 2)),
    4: ("CONFIG_RECORD", MessageLayout("resourceType int8, resourceName string, name string, value string ?")),
    5: ("PARTITION_CHANGE_RECORD", MessageLayout(_PARTITION_CHANGE, 2)),
    7: ("FENCE_BROKER_RECORD", MessageLayout("id int32, epoch int64")),
    8: ("UNFENCE_BROKER_RECORD", MessageLayout("id int32, epoch int64")),
    9: ("REMOVE_TOPIC_RECORD", MessageLayout("topicId uuid")),
    10: ("DELEGATION_TOKEN_RECORD", MessageLayout(_TOKEN_FIELDS)),
    11: (
        "USER_SCRAM_CREDENTIAL_RECORD",
        MessageLayout("name string, mechanism int8, salt bytes, storedKey bytes, serverKey bytes, iterations int32"),
    ),
    12: ("FEATURE_LEVEL_RECORD", MessageLayout("name string, featureLevel int16")),
    14: (
        "CLIENT_QUOTA_RECORD",
        MessageLayout("entity [{entityType string, entityName string ?}], key string, value float64, remove bool"),
    ),
    15: ("PRODUCER_IDS_RECORD", MessageLayout("brokerId int32, brokerEpoch int64, nextProducerId int64")),
    17: ("BROKER_REGISTRATION_CHANGE_RECORD", MessageLayout(_BROKER_CHANGE, 2)),
    18: ("ACCESS_CONTROL_ENTRY_RECORD", MessageLayout(_ACL)),
    19: ("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", MessageLayout("id uuid")),
    20: ("NO_OP_RECORD", MessageLayout("")),
    21: ("ZK_MIGRATION_STATE_RECORD", MessageLayout("zkMigrationState int8")),
    22: ("REMOVE_USER_SCRAM_CREDENTIAL_RECORD", MessageLayout("name string, mechanism int8")),
    23: ("BEGIN_TRANSACTION_RECORD", MessageLayout("name string ? @0=null")),
    24: ("END_TRANSACTION_RECORD", MessageLayout("")),
    25: ("ABORT_TRANSACTION_RECORD", MessageLayout("reason string ? @0=null")),
    26: ("REMOVE_DELEGATION_TOKEN_RECORD", MessageLayout("tokenId string")),
    27: (
        "REGISTER_CONTROLLER_RECORD",
        MessageLayout(f"controllerId int32, incarnationId uuid, zkMigrationReady bool, {_ENDPOINTS}, {_FEATURES}"),
    ),
    28: ("CLEAR_ELR_RECORD", MessageLayout("topicName string")),
}
"""{API key: (name, layout)} of the records of __cluster_metadata."""

_TOPIC_PARTITION = "topicIdPartition {name string, id uuid, partition int32}"
_SEGMENT_ID = f"remoteLogSegmentId {{{_TOPIC_PARTITION}, id uuid}}"
_SEGMENT = """startOffset int64, endOffset int64, brokerId int32, maxTimestampMs int64, eventTimestampMs int64,
    segmentLeaderEpochs [{leaderEpoch int32, offset int64}], segmentSizeInBytes int32, customMetadata bytes ?,
    remoteLogSegmentState int8"""
_DELETED = f"{_TOPIC_PARTITION}, brokerId int32, eventTimestampMs int64, remotePartitionDeleteState int8"
_UPDATE = f"""{_SEGMENT_ID}, brokerId int32, eventTimestampMs int64, customMetadata bytes ?,
    remoteLogSegmentState int8"""

REMOTE_LOG = {
    0: ("REMOTE_LOG_SEGMENT_METADATA_RECORD", MessageLayout(f"{_SEGMENT_ID}, {_SEGMENT}")),
    1: ("REMOTE_LOG_SEGMENT_METADATA_UPDATE_RECORD", MessageLayout(_UPDATE)),
    2: ("REMOTE_PARTITION_DELETE_METADATA_RECORD", MessageLayout(_DELETED)),
    3: ("REMOTE_LOG_SEGMENT_METADATA_SNAPSHOT_RECORD", MessageLayout(f"segmentId uuid, {_SEGMENT}")),
}
"""The same of __remote_log_metadata."""
