"""Notes of commits: what each commit since the last recovery copy did, outside of the manifest.

A note is written beside the files of rows of a commit, at the same time, and so before the commit: where there is none,
there was no commit. It says what the commit adds to the manifest, with all rows, and what it takes out; between which
states, each named by a digest of the files that make it. A note of a commit that never was is like any other. So it
counts only where something later proves it: a note that begins at the state which it leads to, a recovery copy, Delta's
log, or its mark, which is written once the commit is there, when nobody waits for it any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_segments.errors import SegmentsError
from spark_segments.log.manifest.files.row_files import FileChange, NamedFile, RowFile
from spark_segments.storage import Storage
from spark_segments.storage.delta import Action, commit_info, encoded
from spark_segments.storage.numbered_files import crc_line

RECOVERY_DIRECTORY = "_recovery"

_FORMAT_VERSION = 1
_COPY_NAME = re.compile(r"\d{20}\.json")
_LISTED_MS = 60_000
_COMMIT = re.compile(r"[0-9a-f]{32}-\d+")
_NAME = re.compile(rf"(\d{{20}})\.({_COMMIT.pattern})\.(note|made)")


@dataclass(frozen=True, slots=True)
class NoteName:
    """The name of a commit's note, or of its mark: the version that it makes, and its id with the number of the try."""

    version: int
    commit: str

    def path(self, topic: str, suffix: str) -> str:
        """The path of the note (`note`) or of the mark (`made`)."""
        return f"{recovery_directory(topic)}/{self.version:020d}.{self.commit}.{suffix}"


def note_name(version: int, actions: Sequence[Action]) -> NoteName:
    """The name of a commit's note, by its actions in Delta's log. A commit of another writer may have no id that a
    name can have: then the digest of its actions stands for it.
    """
    info = commit_info(actions)
    commit = f"{str(info.get('commitId')).lower()}-{info.get('attempt')}"
    if not _COMMIT.fullmatch(commit):
        commit = f"{hashlib.sha256(encoded(actions)).hexdigest()[:32]}-0"
    return NoteName(version, commit)


@dataclass(frozen=True, slots=True)
class CommitNotes:
    """The existing notes of a topic, by version, the names of the notes that have a mark, and the versions of which
    there is the index of a recovery copy.
    """

    by_version: Mapping[int, Sequence[NoteName]]
    marked: frozenset[NoteName]
    copies: frozenset[int] = frozenset()

    @property
    def newest_copy(self) -> int:
        """The version of the newest copy; -1 where there is none."""
        return max(self.copies, default=-1)

    @property
    def made_versions(self) -> set[int]:
        """The versions that have a mark: each was made, and its mark written after it."""
        return {name.version for name in self.marked}

    @property
    def marked_twice(self) -> Mapping[int, Sequence[NoteName]]:
        """{version after the newest copy that has several marks: their names}, in order. See `rival_version`."""
        names: dict[int, list[NoteName]] = {}
        for name in sorted(self.marked, key=lambda name: (name.version, name.commit)):
            if name.version > self.newest_copy:
                names.setdefault(name.version, []).append(name)
        return {version: of_version for version, of_version in names.items() if len(of_version) > 1}

    def has_proven(self, version: int) -> bool:
        """Whether a version has a note that its mark proves."""
        return any(name in self.marked for name in self.by_version.get(version, ()))


@dataclass(frozen=True, slots=True)
class ReadNote:
    """What a note says. `before`, `after`: the digests of the states between which the commit leads. `contents`: the
    bytes of the files that it adds, by their paths.
    """

    name: NoteName
    operation: str
    before: str
    after: str
    removed: Sequence[str]
    added: Sequence[RowFile]
    contents: Mapping[str, pa.Buffer]
    committed_ms: int


def recovery_directory(topic: str) -> str:
    """The directory of a topic's copies and notes, relative to the log directory."""
    return f"{RECOVERY_DIRECTORY}/{topic}"


def digest_of(paths: Iterable[str]) -> str:
    """The name of a state of the manifest: that of the paths of its files, of which none is ever used again."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:32]


def note_file(
    topic: str,
    name: NoteName,
    operation: str,
    before: Iterable[str],
    change: FileChange,
    contents: Mapping[str, Any],
    committed_ms: int,
) -> NamedFile:
    """The note of a commit to a state of the files `before`. `contents`: the bytes of the files that it adds."""
    paths_before = set(before)
    removed = [file.path for file in change.removed]
    after = (paths_before - set(removed)) | {file.path for file in change.added}
    payload = b"".join(bytes(memoryview(contents[file.path])) for file in change.added)
    fields = {
        "format.version": _FORMAT_VERSION,
        "topic": topic,
        "version": name.version,
        "commit": name.commit,
        "operation": operation,
        "committed_ms": committed_ms,
        "before": digest_of(paths_before),
        "after": digest_of(after),
        "removed": removed,
        "added": [
            {"path": file.path, "kind": file.kind, "rows": file.rows, "size": memoryview(contents[file.path]).nbytes}
            for file in change.added
        ],
        "transactions": {},  # a topic's transactions are rows; readers of the format need the member
        "crc32": zlib.crc32(payload),
    }
    head = json.dumps(fields, separators=(",", ":")).encode()
    return name.path(topic, "note"), b"".join((head, crc_line(head), payload))


def mark(storage: Storage, topic: str, name: NoteName) -> None:
    """Marks the note of a commit that was made. On an object store the writer does not wait for the mark. A mark that
    fails is never an error: the next note, or copy, proves the commit as well.
    """

    def write() -> None:
        with contextlib.suppress(SegmentsError, OSError):
            storage.write(name.path(topic, "made"), b"{}\n", unique=True)

    if storage.is_local:
        write()
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="commit-mark")
    pool.submit(write)
    pool.shutdown(wait=False)


def notes_of(storage: Storage, topic: str) -> CommitNotes:
    """The existing notes, damaged ones too."""
    notes: dict[int, list[NoteName]] = {}
    marked: set[NoteName] = set()
    copies: set[int] = set()
    for info in storage.list(recovery_directory(topic)):
        name_of_file = info.path.rpartition("/")[2]
        match = _NAME.fullmatch(name_of_file)
        if _COPY_NAME.fullmatch(name_of_file):
            copies.add(int(name_of_file.removesuffix(".json")))
        if match is not None:
            name = NoteName(int(match[1]), match[2])
            if match[3] == "made":
                marked.add(name)
            else:
                notes.setdefault(name.version, []).append(name)
    by_version = {version: sorted(notes[version], key=lambda name: name.commit) for version in sorted(notes)}
    return CommitNotes(by_version, frozenset(marked), frozenset(copies))


def version_of(path: str) -> int | None:
    """The version of a note or a mark with this path; None for any other file."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True)
class CommitTraces:
    """What says that commits of a topic were made, where no manifest of it is found: their marks, and the indexes of
    copies.

    `are_any`: there is such a file. `are_listed`: one is older than a minute, so that the manifest is lost: a listing
    would show it. A younger one proves that only to who has made the first commit of a new manifest since.
    """

    are_any: bool
    are_listed: bool

    @staticmethod
    def of(storage: Storage, topic: str) -> CommitTraces:
        names = ((file, file.path.rpartition("/")[2]) for file in storage.list(recovery_directory(topic)))
        times_ms = [file.mtime_ms for file, name in names if name.endswith(".made") or _COPY_NAME.fullmatch(name)]
        # The store's clock is asked by a write, and so only where there is anything to compare with it.
        return CommitTraces(bool(times_ms), bool(times_ms) and min(times_ms) < storage.now_ms() - _LISTED_MS)


def read_note(storage: Storage, topic: str, name: NoteName) -> ReadNote | None:
    """A note; None where it is gone, or damaged: half a note is that of a commit that was never sent."""
    try:
        data = storage.read(name.path(topic, "note"))
    except FileNotFoundError:
        return None
    try:
        content = data.to_pybytes()
        head, _, rest = content.partition(b"\n")
        line, _, _ = rest.partition(b"\n")
        fields = json.loads(head)
        start = len(head) + len(line) + 2
        if fields["format.version"] != _FORMAT_VERSION or content[len(head) : start] != crc_line(head):
            return None
        if (fields["topic"], fields["version"], fields["commit"]) != (topic, name.version, name.commit):
            return None
        if zlib.crc32(content[start:]) != fields["crc32"]:
            return None
        contents = {}
        added = []
        for file in fields["added"]:
            contents[file["path"]] = data.slice(start, file["size"])
            added.append(RowFile(file["path"], file["kind"], file["rows"], file["size"], 0, {}))
            start += file["size"]
        return ReadNote(
            name, fields["operation"], fields["before"], fields["after"], fields["removed"], added, contents,
            int(fields["committed_ms"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
