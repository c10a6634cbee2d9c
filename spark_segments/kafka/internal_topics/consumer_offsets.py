"""The positions of groups, from records of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_segments.errors import LogDirError
from spark_segments.kafka.internal_topics.message_reader import MessageReader

GroupOffsets = Mapping[str, Mapping[tuple[str, int], tuple[int, str]]]
"""{group: {(topic, partition): (next offset to be read, metadata)}}"""

TOPIC = "__consumer_offsets"

_NEWEST_KEY = 1  # of keys of positions
_WITH_EPOCH = 3  # from this version of values on there is a leader epoch
_FLEXIBLE = 4  # this version of values has short sizes


def groups_of_records(records: Iterable[tuple[bytes, bytes]]) -> GroupOffsets:
    """The positions in records of `__consumer_offsets`, (key, value) each, one a key.

    Keys of versions 0 and 1 are positions (OffsetCommitKey); others tell of members. Values are OffsetCommitValue,
    versions 0 to 4. Raises LogDirError for a value of another version, and for a key or a value that is cut.
    """
    groups: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
    for key, value in records:
        try:
            fields = MessageReader(key)
            if fields.number(2) > _NEWEST_KEY:
                continue
            group, topic = (fields.bytes(fields.number(2)).decode() for _ in range(2))
            groups.setdefault(group, {})[topic, fields.number(4)] = _offset(MessageReader(value))
        except (ValueError, IndexError) as error:
            raise LogDirError(
                "A record of __consumer_offsets cannot be read",
                expected="OffsetCommitKey 0 or 1, OffsetCommitValue 0 to 4",
                found=f"key {key[:2].hex() or 'begins with nothing'}, value {value[:2].hex() or 'begins with nothing'}",
            ) from error
    return groups


def _offset(fields: MessageReader) -> tuple[int, str]:
    """(offset, metadata) of an OffsetCommitValue."""
    version = fields.number(2)
    offset = fields.number(8)
    if version > _FLEXIBLE:
        raise ValueError(f"version {version}")
    fields.bytes(0 if version < _WITH_EPOCH else 4)
    return offset, fields.bytes(fields.number(2) if version < _FLEXIBLE else fields.varint() - 1).decode()
