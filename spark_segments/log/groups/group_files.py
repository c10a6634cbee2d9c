"""The files of a group: their names, their bytes, and which of them is the newest.

`_groups/<id>/<number>.json` has all positions of a group after its commit of that number. Names are created only if
they are free, and never again once they are gone: readers look at the highest number alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, SegmentsError, StorageError
from spark_segments.log.positions import Position, TopicPartition
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.numbered_files import NumberedFiles, NumberedListing, crc_line, directory_name

GROUPS_DIRECTORY = "_groups"
FORMAT_VERSION = 1

LONGEST_ID = 32_767
"""The longest id in bytes of UTF-8: what a string of Kafka's protocol holds."""

MOST_BYTES = 256 * 1024 * 1024
LEFT_OVER_MS = 60 * 60 * 1000
"""A file that a commit has staged and left behind goes when the newest file is so much younger."""

_COLUMNS = ("partition", "offset", "leader_epoch", "committed_ms", "metadata")

GroupRows = dict[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A commit of a group: its number, from 1, its own id and that of the commit before it, and all positions after it.

    Number 0, without positions, stands for the group before its first commit. `lease`: the highest lease under which a
    server committed to the group; 0: none did. `made_by`: who made the group, empty if it is not known.
    """

    number: int
    commit_id: str
    after: str
    rows: GroupRows
    lease: int = 0
    made_by: str = ""

    KEPT: ClassVar = 32
    """How many of the last commits stay, so that a writer whose reply was lost finds its commit again."""

    TRIM_EVERY: ClassVar = 16
    """Every so many commits the older files are deleted."""


def check_group_id(group: str) -> None:
    """Raises InvalidOptionError for what Kafka takes for no group's id: the empty string, and no text at all."""
    try:
        size = len(group.encode())
    except UnicodeEncodeError:
        size = -1
    if not 0 < size <= LONGEST_ID:
        raise InvalidOptionError(
            "The text cannot be a group's id",
            expected=f"1 to {LONGEST_ID:,} bytes of UTF-8",
            found=repr(group[:100]),
        )


def directory_of(group: str) -> str:
    """The directory of a group, relative to the log directory."""
    check_group_id(group)
    return f"{GROUPS_DIRECTORY}/{directory_name(group)}"


def group_of(storage: Storage, name: str) -> str:
    """The id of the group whose directory has this name; the name itself where nobody can tell."""
    if "==" not in name:
        return unquote_to_bytes(name.replace("=", "%")).decode(errors="replace")
    directory = f"{GROUPS_DIRECTORY}/{name}"
    try:
        newest = max(info.path for info in storage.list(directory) if info.path.endswith(".json"))
        group = _text(json.loads(storage.read(newest, 0, MOST_BYTES).to_pybytes().partition(b"\n")[0])["group"])
        return group if directory_of(group) == directory else name
    except (SegmentsError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return name


def content_of(group: str, commit: GroupCommit) -> bytes:
    """The bytes of a commit's file: a line of JSON, and a line with its CRC-32."""
    logs: dict[tuple[str, str], dict[str, Any]] = {}
    for (topic, partition), position in sorted(commit.rows.items()):
        key = topic, position.topic_id or ""
        log = logs.setdefault(key, {"topic": key[0], "topic_id": key[1], **{name: [] for name in _COLUMNS}})
        log["partition"].append(partition)
        for name in _COLUMNS[1:]:
            log[name].append(getattr(position, name))
    fields = {
        "format.version": FORMAT_VERSION,
        "group": group,
        "number": commit.number,
        "commit_id": commit.commit_id,
        "after": commit.after,
        "positions": list(logs.values()),
    }
    if commit.lease:
        fields["lease"] = commit.lease
    if commit.made_by:
        fields["made_by"] = commit.made_by
    body = json.dumps(fields, separators=(",", ":")).encode()
    return body + crc_line(body)


class GroupFiles(NumberedFiles):
    """The files of a group, whether or not it has any."""

    def __init__(self, storage: Storage, group: str) -> None:
        super().__init__(storage, directory_of(group))
        self.group = group

    def make(self, commit: GroupCommit) -> None:
        """Makes a commit's file, as `create` does."""
        self.create(commit.number, content_of(self.group, commit))

    def read(self, number: int) -> GroupCommit:
        """A commit. FileNotFoundError where it is not there (any more), StorageError where its file is damaged."""
        path = self.path(number)
        data = self.storage.read(path, 0, MOST_BYTES + 1)
        try:
            return parsed(self.group, number, data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StorageError(
                f"The positions of group {self.group} are damaged ({error})",
                path=self.storage.location(path),
                hint="Restore the file from a backup, or begin the group anew: segments groups delete",
            ) from error


def expired_files(listing: NumberedListing) -> list[FileInfo]:
    """The commits before the last KEPT, the lowest numbers first, and what commits have staged and left."""
    old = listing.before(listing.newest - GroupCommit.KEPT)
    # Two files' times are compared, and no clock is asked: what is staged right now is no hour older than the newest.
    if listing.newest:
        before_ms = listing.numbers[listing.newest].mtime_ms - LEFT_OVER_MS
        old += [info for info in listing.others if info.path.endswith(".tmp") and info.mtime_ms < before_ms]
    return old


def parsed(group: str, number: int, data: pa.Buffer) -> GroupCommit:
    """The commit in a file. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError for damage."""
    fields = _checked_fields(data)
    if (_text(fields["group"]), fields["number"]) != (group, number):
        raise ValueError(f"it is commit {fields['number']} of group {fields['group']}")
    return GroupCommit(
        number,
        _text(fields["commit_id"]),
        after=_text(fields["after"]),
        rows=_rows_of(fields["positions"]),
        lease=_number(fields.get("lease", 0), 63),
        made_by=_text(fields.get("made_by", "")),
    )


def _checked_fields(data: pa.Buffer) -> dict[str, Any]:
    """The fields in a file's line of JSON, if the line behind it has its CRC."""
    if data.size > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    content = data.to_pybytes()
    body, end, _ = content.partition(b"\n")
    fields: dict[str, Any] = json.loads(body)
    # The version comes first: what a newer one has behind the line is not ours to judge.
    if fields["format.version"] != FORMAT_VERSION:
        raise ValueError(f"format.version {fields['format.version']!r}: use a newer spark-segments")
    if content[len(body) :] != crc_line(body) or not end:
        raise ValueError("the CRC is another one")
    return fields


def _rows_of(logs: Iterable[Mapping[str, Any]]) -> GroupRows:
    """The positions of a file, which has them by topic, a list for each column."""
    rows: GroupRows = {}
    for log in logs:
        topic = _text(log["topic"])
        topic_id = _text(log["topic_id"]) or None
        for partition, offset, epoch, committed_ms, metadata in zip(*(log[name] for name in _COLUMNS), strict=True):
            key = topic, _number(partition, 31)
            if key in rows:
                raise ValueError(f"{topic}-{partition} is there twice")
            rows[key] = Position(
                _number(offset, 63),
                topic_id,
                _number(epoch, 31),
                _text(metadata),
                _number(committed_ms, 63),
            )
    return rows


def _number(value: Any, bits: int) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise ValueError(f"no number of {bits} bits: {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"no text: {value!r:.40}")
    value.encode()  # raises for half a character
    return value


def offsets_of(rows: Mapping[TopicPartition, Position]) -> dict[str, dict[int, int]]:
    """{topic: {partition: offset}}, sorted."""
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), position in sorted(rows.items()):
        offsets.setdefault(topic, {})[partition] = position.offset
    return offsets


def is_damaged(error: SegmentsError) -> bool:
    """Whether an error says that a file of positions is damaged, and not that it could not be read."""
    return isinstance(error, StorageError) and "damaged" in error.message
