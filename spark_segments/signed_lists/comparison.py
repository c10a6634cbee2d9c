"""A log directory compared with a list of checksums: what differs, and what became of the files that the list names.

A file that is in the list and not in the manifest has left the log since. It is counted by the commit that says so, or
as one below the log start. Where nothing says why it is gone, that is a finding: a policy may have taken it, or a hand.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_segments.config import selected_topics
from spark_segments.errors import MissingFileError, SegmentsError
from spark_segments.format.file_names import BASE_OFFSET_DIGITS, LOG_SUFFIX
from spark_segments.log import Findings, LogDirectory, Manifest, Snapshot, row_tables
from spark_segments.signed_lists.checksum_list import ChecksumList, partitions_of
from spark_segments.signed_lists.file_checksum import FileChecksum, checksums_of
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNKNOWN = "unknown"
"""What took a file where no commit says it that the manifest still has: vacuum takes old commits."""

BELOW_START = "below the log start"
"""In place of an operation: retention, or delete-records, has passed all that the file had."""


@dataclass(slots=True)
class ListedFiles:
    """Of the files of a list: how many there are, how many were compared, and {operation: files that it took}."""

    files: int = 0
    compared: int = 0
    gone: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """As the report's details have it."""
        return {"files": self.files, "compared": self.compared, "gone": dict(sorted(self.gone.items()))}

    def add(
        self, manifest: Manifest, since_version: int, listed: Collection[str], live: Collection[str],
        below_start: Collection[str], findings: Findings,
    ) -> set[str]:  # fmt: skip
        """Counts the files of a topic. `listed`, `live`: paths without suffixes, of each file and of each live row;
        `below_start`: of what lies below the log start. Returns the listed paths that are gone for an unknown reason.

        None of them left to compare is a finding: such a look has shown nothing of the topic.
        """
        gone = [stem for stem in listed if stem not in live]
        self.files += len(listed)
        self.compared += len(listed) - len(gone)
        if not gone:
            return set()
        operations = manifest.operations_out_of_log(since_version)
        reasons = [operations.get(stem) or (BELOW_START if stem in below_start else UNKNOWN) for stem in gone]
        counts = Counter(reasons)
        self.gone += counts
        if len(gone) == len(listed):
            findings.add(
                "No file of the list of checksums is in the topic any more: nothing was compared",
                expected=f"any of {len(listed)} files",
                found=f"gone by {by_operation(counts)}",
            )
        return {stem for stem, reason in zip(gone, reasons, strict=True) if reason == UNKNOWN}


def by_operation(gone: Counter[str] | dict[str, int]) -> str:
    """As `3 erase, 2 retain`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(gone.items()))


@dataclass(slots=True)
class ListComparison:
    """What a comparison has shown. `findings`: of each topic of the list that was compared."""

    findings: list[Findings] = field(default_factory=list)
    bytes_read: int = 0
    files: ListedFiles = field(default_factory=ListedFiles)


def compare(
    log: LogDirectory, listed: ChecksumList, topics: Sequence[str] | None = None, spark: SparkSession | None = None
) -> ListComparison:
    """Compares the listed topics, or the selected ones, with the list."""
    comparison = ListComparison()
    files_by_topic = _files_by_topic(listed)
    selected = set(selected_topics(listed.topics, topics))
    for name in sorted(selected & listed.topics.keys()):
        facts = listed.topics[name]
        findings = Findings(name)
        comparison.findings.append(findings)
        try:
            snapshot = log.snapshot(name)
            rows = row_tables.live(snapshot.segments)
        except SegmentsError as error:
            findings.add("A topic of the list of checksums cannot be read", expected=facts["topic_id"], found=error)
            continue
        is_later = _check_topic(snapshot, facts, findings)
        live_stems = {path.removesuffix(LOG_SUFFIX) for path in rows.column("path").to_pylist()}
        files = files_by_topic.get(name, [])
        listed_stems = [_stem(file) for file in files]
        below_start = _below_start(snapshot, facts["log_end_offsets"], files)
        unknown = comparison.files.add(
            log.manifest(name), facts["version"], listed_stems, live_stems, below_start, findings
        )
        if is_later:
            _note_unknown(unknown, facts["version"], findings)
        live_files = [file for file in files if _stem(file) in live_stems]
        comparison.bytes_read += _compare_files(log.storage, live_files, spark, findings)
    return comparison


def _files_by_topic(listed: ChecksumList) -> dict[str, list[FileChecksum]]:
    """The files of each topic, by their directories: those of partitions, and of shared objects."""
    by_directory: dict[str, list[FileChecksum]] = defaultdict(list)
    for file in listed.files.values():
        by_directory[file.path.rpartition("/")[0]].append(file)
    by_topic: dict[str, list[FileChecksum]] = defaultdict(list)
    for directory in sorted(by_directory):
        topic = directory.rpartition("-")[0]  # a topic's name may have dashes, too
        by_topic[topic] += by_directory[directory]
    return by_topic


def _stem(file: FileChecksum) -> str:
    """The path without its suffix, which a segment's files share."""
    return file.path.rpartition(".")[0]


def _below_start(snapshot: Snapshot, log_ends: Mapping[str, int], files: Collection[FileChecksum]) -> set[str]:
    """The paths, without suffixes, of the listed segments that end at the log start of now or below it. `log_ends`: of
    each partition, in the list.
    """
    listed_ends = {_stem(file): file.next_offset for file in files if file.next_offset is not None}
    by_directory: dict[str, set[str]] = defaultdict(set)
    for file in files:
        by_directory[file.path.rpartition("/")[0]].add(_stem(file))
    bounds = snapshot.offset_bounds()
    below = set()
    for directory, stems in by_directory.items():
        number = directory.rpartition("-")[2]
        if not number.isdigit() or number not in log_ends or int(number) not in bounds:
            continue  # a shared object has runs of several partitions
        ends = _ends_by_name(stems, log_ends[number]) | {stem: listed_ends[stem] for stem in stems & listed_ends.keys()}
        log_start = bounds[int(number)][0]
        below |= {stem for stem, end in ends.items() if end <= log_start}
    return below


def _ends_by_name(stems: Collection[str], log_end: int) -> dict[str, int]:
    """Where the segments of a partition end at most, for lists that do not say it: where the next one of the list
    begins, and the last one at the log end. Names of chunks have no offset but 0, so that where several files have one
    base offset, they end at the log end.
    """
    ordered = sorted(stems, key=_base_offset)
    begins = [*map(_base_offset, ordered)]
    files_at = Counter(begins)
    following = [*begins[1:], log_end]
    return {
        stem: end if files_at[begin] == 1 else log_end
        for stem, begin, end in zip(ordered, begins, following, strict=True)
    }


def _base_offset(stem: str) -> int:
    return int(stem.rpartition("/")[2][:BASE_OFFSET_DIGITS])


def _compare_files(
    storage: Storage, files: Iterable[FileChecksum], spark: SparkSession | None, findings: Findings
) -> int:
    """Reads these files whole and adds what differs to the findings. The bytes that were read."""
    files = list(files)
    with_sha256 = any(file.sha256 for file in files)
    paths = [(file.path, None) for file in files]  # whole, for the manifest may say less of a file than is there
    bytes_read = 0
    for expected, found in zip(files, checksums_of(storage, paths, spark, with_sha256=with_sha256), strict=True):
        place: dict[str, Any] = {"path": expected.path, "expected": str(expected)}
        if isinstance(found, MissingFileError):
            findings.add("The file is missing", **place, found="no file")
        elif isinstance(found, SegmentsError):
            findings.add("The file cannot be read", **place, found=found)
        else:
            bytes_read += found.size
            if found != expected:
                findings.add("The file is not that of the list of checksums", **place, found=str(found))
    return bytes_read


def _note_unknown(stems: Iterable[str], version: int, findings: Findings) -> None:
    for stem in sorted(stems):
        findings.add(
            "A file of the list of checksums is gone for an unknown reason",
            path=f"{stem}{LOG_SUFFIX}",
            expected=f"a commit after version {version} that took it, or a log start above it",
            found="neither",
        )


def _check_topic(snapshot: Snapshot, facts: Mapping[str, Any], findings: Findings) -> bool:
    """Whether the topic is that of the list, at its version or a later one. Adds a finding where it is another one, or
    went back behind the list.
    """
    if snapshot.topic_id != facts["topic_id"]:
        findings.add(
            "The topic is not that of the list of checksums", expected=facts["topic_id"], found=snapshot.topic_id
        )
        return False
    if snapshot.version < facts["version"]:
        findings.add(
            "The topic went back to a version before the list of checksums",
            expected=f"version {facts['version']} or later",
            found=snapshot.version,
        )
    if snapshot.version == facts["version"] and "partitions" in facts:
        _check_partitions(snapshot, facts["partitions"], findings)
    log_ends = {str(number): end for number, (_, end) in snapshot.offset_bounds().items()}
    for number, end in facts["log_end_offsets"].items():
        # A topic that went on has the list's records and more: a log end never goes back.
        if log_ends.get(number, -1) < end:
            findings.add(
                "The log end is below that of the list of checksums",
                partition=int(number),
                expected=f"at least {end}",
                found=log_ends.get(number, "no partition"),
            )
    return bool(snapshot.version >= facts["version"])


def _check_partitions(snapshot: Snapshot, listed: Mapping[str, Any], findings: Findings) -> None:
    """A signed list says offsets and records of each partition: they are those of the same version."""
    for number, found in partitions_of(snapshot).items():
        if found != listed.get(number):
            findings.add(
                "The partition is not that of the signed list, of the same version",
                partition=int(number),
                expected=listed.get(number),
                found=found,
            )
