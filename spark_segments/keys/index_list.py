"""The list of an index: which runs it has, and up to which version of the topic they hold. Its file, and its bytes."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar

import pyarrow as pa

from spark_segments.errors import FormatVersionError, InvalidOptionError, LogDirError, SegmentsError
from spark_segments.keys.run import Run
from spark_segments.storage import Storage
from spark_segments.storage.numbered_files import NumberedFiles, NumberedListing, crc_line

KEYS_DIRECTORY = "_keys"
KEY_INDEX = "key"
"""The index of the bytes of keys."""

COPY_NAME = "newest.json"
FORMAT_VERSION = 1
FIELD_FORMAT_VERSION = 2
"""Of the list of an index on a field: a program that knows keys alone could not take what was erased out of it."""

MOST_BYTES = 256 << 20
FORGOTTEN_MS = 30 * 86_400_000
"""After this time a list does not say any more when a run left it: vacuum goes by the age of its file."""


@dataclass(frozen=True, slots=True)
class SupersededRun:
    """A run that is not in the index any more, since a time by the store's clock."""

    path: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """A version of a topic up to which something holds, and the id of its commit: a manifest that was put in the place
    of another one may have a version of the same number.
    """

    topic_id: str
    version: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class IndexList:
    """An index after its commit of a number, from 1; number 0 stands for an index before its first commit.

    `checked_version`: the version of the topic up to which its runs hold, whose commit has the id `checked_commit_id`.
    `is_dropped`: there is no index any more. `is_damaged`: its file cannot be read. It has no runs, and what earlier
    lists say has left the index; the files of its runs are among them, but for what nobody can tell.

    `on`: the name of the field that its entries are of, "" for keys. `formats`, `fingerprint`: what decided how the
    field was decoded (`RecordField`).
    """

    KEPT_LISTS: ClassVar = 32
    """How many of the last lists stay, so that a job whose reply was lost finds its commit again."""

    number: int = 0
    commit_id: str = ""
    after: str = ""
    topic_id: str = ""
    hash_bits: int = 0
    seed: int = 0
    is_dropped: bool = False
    checked_version: int = -1
    checked_commit_id: str = ""
    runs: tuple[Run, ...] = ()
    superseded: tuple[SupersededRun, ...] = ()
    is_damaged: bool = False
    on: str = ""
    formats: Mapping[str, str] = field(default_factory=dict, hash=False)
    fingerprint: str = ""

    @property
    def exists(self) -> bool:
        """Whether there is an index that can be read."""
        return self.number > 0 and not self.is_dropped and not self.is_damaged

    @property
    def is_kept(self) -> bool:
        """Whether somebody wants an index: a damaged one is built again."""
        return self.exists or self.is_damaged

    @property
    def what(self) -> str:
        """What it is an index of, in words."""
        return self.on or "keys"

    @property
    def checked(self) -> CheckedVersion:
        """The version of the topic up to which the runs hold."""
        return CheckedVersion(self.topic_id, self.checked_version, self.checked_commit_id)

    def with_runs(self, runs: Sequence[Run], now_ms: int) -> IndexList:
        """The same list with these runs; those that leave it are superseded from now on."""
        paths = {run.path for run in runs}
        gone = (SupersededRun(run.path, now_ms) for run in self.runs if run.path not in paths)
        ordered = sorted(runs, key=lambda run: (run.partition, run.base_offset))
        recent = (run for run in self.superseded if now_ms - run.since_ms < FORGOTTEN_MS)
        return replace(self, runs=tuple(ordered), superseded=(*recent, *gone))

    def to_bytes(self, topic: str) -> bytes:
        """The content of its file: a line of JSON, and a line with its CRC-32."""
        content = {
            "format.version": FIELD_FORMAT_VERSION if self.on else FORMAT_VERSION,
            "number": self.number,
            "commit_id": self.commit_id,
            "after": self.after,
            "topic": topic,
            "topic_id": self.topic_id,
            "hash_bits": self.hash_bits,
            "seed": self.seed,
            "dropped": self.is_dropped,
            "checked_version": self.checked_version,
            "checked_commit_id": self.checked_commit_id,
            "runs": _columns(Run, self.runs),
            "superseded": _columns(SupersededRun, self.superseded),
        }
        if self.on:
            content |= {"on": self.on, "formats": dict(self.formats), "fingerprint": self.fingerprint}
        body = json.dumps(content, separators=(",", ":")).encode()
        return body + crc_line(body)

    @classmethod
    def of_bytes(cls, topic: str, number: int, data: pa.Buffer) -> IndexList:
        """The list in a file. Raises FormatVersionError for a newer one, ValueError, KeyError, TypeError for damage."""
        content = data.to_pybytes()
        body, end, _ = content.partition(b"\n")
        columns = json.loads(body)
        version = columns["format.version"]
        on = columns.get("on", "")
        most = FIELD_FORMAT_VERSION if on else FORMAT_VERSION
        # The version comes first: what a newer one has behind the line is not ours to judge.
        if type(version) is int and version > most:
            raise FormatVersionError(
                f"The index of {topic}{f' on {on}' if on else ''} was written by a newer version of this package",
                expected=f"format.version {most}",
                found=version,
                hint="Use a newer spark-segments: until then the index is left alone, and look-ups scan the log",
            )
        if version != most:
            raise ValueError(f"format.version {version!r}")
        if not end or content[len(body) :] != crc_line(body):
            raise ValueError("the CRC is another one")
        if (columns["topic"], columns["number"]) != (topic, number):
            raise ValueError(f"it is list {columns['number']} of topic {columns['topic']}")
        return cls(
            number,
            columns["commit_id"],
            columns["after"],
            columns["topic_id"],
            int(columns["hash_bits"]),
            int(columns["seed"]),
            bool(columns["dropped"]),
            int(columns["checked_version"]),
            columns["checked_commit_id"],
            tuple(_run(*row) for row in _rows(Run, columns["runs"])),
            tuple(SupersededRun(*row) for row in _rows(SupersededRun, columns["superseded"])),
            on=_text(on),
            formats={_text(name): _text(text) for name, text in columns.get("formats", {}).items()},
            fingerprint=_text(columns.get("fingerprint", "")),
        )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _columns(kind: type[Any], rows: Sequence[Any]) -> dict[str, list[Any]]:
    return {column.name: [getattr(row, column.name) for row in rows] for column in fields(kind)}


def _rows(kind: type[Any], columns: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """The rows of columns. A column that lists of before do not have is left out."""
    names = [column.name for column in fields(kind) if column.name in columns or column.default is MISSING]
    return list(zip(*(columns[name] for name in names), strict=True))


def _run(*row: Any) -> Run:
    run = Run(*row)
    return replace(run, fan_out=tuple(run.fan_out))


class IndexFiles(NumberedFiles):
    """The lists of an index of a topic, whether or not there is one."""

    def __init__(self, storage: Storage, topic: str, index: str = KEY_INDEX) -> None:
        super().__init__(storage, f"{KEYS_DIRECTORY}/{topic}/{index}")
        self.topic = topic
        self.index = index

    def make(self, index_list: IndexList) -> None:
        """Makes a list's file, as `create` does."""
        self.create(index_list.number, index_list.to_bytes(self.topic))

    def read(self, number: int) -> IndexList:
        """A list. FileNotFoundError where it is not there (any more). A damaged file has no runs: its index can be
        built again, and nobody waits for it. Raises FormatVersionError for a newer format: its index is no damage.
        """
        data = self.storage.read(self.path(number), 0, MOST_BYTES)
        try:
            return self._own(IndexList.of_bytes(self.topic, number, data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return IndexList(number, is_damaged=True)

    def _own(self, index_list: IndexList) -> IndexList:
        """A list that was read. Raises ValueError for that of another index of the topic."""
        if not index_list.is_dropped and index_name(index_list.on) != self.index:
            raise ValueError(f"it is of the index on {index_list.what}")
        return index_list

    def note_newest(self, index_list: IndexList) -> None:
        """Writes the copy by which a look-up has the newest list as soon as the listing of the lists."""
        self.storage.replace(self.path_of_copy, index_list.to_bytes(self.topic))

    @property
    def path_of_copy(self) -> str:
        """The file that has a copy of the newest list, or of one before it where the copy failed."""
        return f"{self.directory}/{COPY_NAME}"

    def _copy(self) -> IndexList | None:
        """The list in the copy, None where there is none that can be read."""
        try:
            data = self.storage.read(self.path_of_copy, 0, MOST_BYTES)
            number = json.loads(data.to_pybytes().partition(b"\n")[0])["number"]
            return self._own(IndexList.of_bytes(self.topic, number, data))
        except (FileNotFoundError, SegmentsError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def newest_by_copy(self) -> IndexList:
        """The newest list, as soon as a store has answered two requests at once. The copy may be of another list with
        the newest number, where lists were deleted by hand: any list is true of its own version, and older runs cost
        time alone.
        """
        requests: list[Callable[[], Any]] = [self._copy, self.listing]
        copy, listing = self.storage.at_once(operator.call, requests)
        is_newest = copy is not None and copy.number == listing.newest
        return copy if is_newest else self.newest_list()

    def newest_list(self) -> IndexList:
        """The newest list, that of number 0 where there is none. Raises StorageError and FormatVersionError."""

        def read(listing: NumberedListing) -> IndexList:
            newest = self.read(listing.newest) if listing.newest else IndexList()
            if not newest.is_damaged:
                return newest
            copy = self._copy()
            if copy is not None and copy.number == newest.number:
                return copy
            before = self._before(listing)
            own = replace(newest, on=before.on, formats=before.formats, fingerprint=before.fingerprint)
            return replace(own, superseded=before.superseded)

        return self.newest(read)

    def _before(self, listing: NumberedListing) -> IndexList:
        """The last list before the newest one that can be read; that of number 0 where there is none."""
        for number in sorted(listing.numbers, reverse=True)[1:]:
            before = self.read(number)
            if not before.is_damaged:
                return before
        return IndexList()

    def damage(self, index_list: IndexList) -> LogDirError:
        """The error for a list that is damaged."""
        return LogDirError(
            f"The newest list of the index of {self.topic}{f' on {index_list.on}' if index_list.on else ''} is damaged",
            path=self.storage.location(self.path(index_list.number)),
            hint="segments index builds the index again; until then look-ups scan the log",
        )

    def old_lists(self, listing: NumberedListing) -> list[str]:
        """The paths of the lists before the last KEPT_LISTS."""
        return [info.path for info in listing.before(listing.newest - IndexList.KEPT_LISTS)]


def index_name(on: str) -> str:
    """The directory of the index on a field, "" for keys. A field's name may be anything, and say something of people:
    the directory has its hash. Raises InvalidOptionError for half of a surrogate pair.
    """
    try:
        name = on.encode()
    except UnicodeEncodeError:
        raise InvalidOptionError("The text is no name of a field", expected="UTF-8", found=repr(on)) from None
    return f"on-{hashlib.sha256(name).hexdigest()[:32]}" if on else KEY_INDEX


def indexes(storage: Storage, topic: str) -> list[str]:
    """The names of the directories of a topic's indexes, sorted; also of those that were dropped."""
    return list(storage.directories(f"{KEYS_DIRECTORY}/{topic}"))


def kept_indexes(storage: Storage, topic: str) -> list[str]:
    """What a topic has indexes of, in words: keys, or the names of fields. A damaged list may not say it."""
    lists = {name: IndexFiles(storage, topic, name).newest_list() for name in indexes(storage, topic)}
    return sorted(own.what for name, own in lists.items() if own.is_kept and index_name(own.on) == name)


def indexed_topics(storage: Storage) -> list[str]:
    """The topics that have a directory of indexes, sorted; the topic itself may be gone."""
    return list(storage.directories(KEYS_DIRECTORY))
