"""A look-up of keys, or of a field: the believed runs of an index are asked, and what they do not cover is left to the
scan.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from spark_segments.errors import FormatVersionError, SegmentsError, UnknownTopicError
from spark_segments.keys.belief import believed_runs, has_lost, index_state, is_checked, runs_before, uncovered
from spark_segments.keys.hashes import UNDECODABLE, hashes_to_find
from spark_segments.keys.index_list import (
    KEYS_DIRECTORY,
    IndexFiles,
    IndexList,
    SupersededRun,
    index_name,
    indexed_topics,
    indexes,
)
from spark_segments.keys.job import IndexUpdate
from spark_segments.keys.key_field import KEY_FIELD
from spark_segments.keys.remedies import stale_index_error
from spark_segments.keys.run import Run
from spark_segments.keys.run_file import RunAnswer, find_in_run
from spark_segments.keys.verification import verify_index
from spark_segments.log import Findings, KeyCoverage, KeyRanges, LogDirectory, RecordField, Report, Snapshot
from spark_segments.storage import FileInfo, Storage

OffsetRanges = tuple[tuple[int, int], ...]
Offsets = Mapping[int, OffsetRanges]

UNNAMED_MS = 86_400_000
"""A file that no list names may be one of a job that runs now. It stays for so long at least."""

NEAR_BYTES = 64 << 10
"""Two records are read in one go where so many bytes of log at most lie between them: a look at each costs more."""

MOST_RANGES = 4096
"""How many ranges a look-up gives of a partition, at most: beyond it the nearest ones are joined."""


class KeyIndexes:
    """The indexes of the topics in a log directory: see `log.key_offsets.KeyOffsets`."""

    directory = KEYS_DIRECTORY

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._storage = log.storage

    def of_keys(self, snapshot: Snapshot, offsets: Offsets, keys: Sequence[bytes]) -> KeyRanges:
        """The ranges among `offsets` that have all records of the keys."""
        return self.of_field(snapshot, offsets, KEY_FIELD, keys)

    def of_field(self, snapshot: Snapshot, offsets: Offsets, field: RecordField, values: Sequence[bytes]) -> KeyRanges:
        """The ranges among `offsets` that have all records of which a field has any of the values."""
        if not values:
            nothing = {number: tuple((start, start) for start, _ in ranges[:1]) for number, ranges in offsets.items()}
            return KeyRanges(nothing, KeyCoverage(indexed_offsets=_length(offsets)))
        try:
            asked = self._answers(snapshot, offsets, field, values)
        except (SegmentsError, FileNotFoundError) as error:
            # An index that cannot be read must not keep anybody from the log.
            return KeyRanges.scanned(offsets, str(error))
        ranges = {number: asked.ranges(snapshot, number, own) for number, own in offsets.items()}
        return KeyRanges(ranges, asked.coverage(offsets))

    def ranges_without(self, snapshot: Snapshot, offsets: Offsets, keys: Sequence[bytes]) -> Offsets:
        """Those of the ranges `offsets` in which no record has any of the keys, by the believed runs."""
        spans = {number: (_span(ranges),) for number, ranges in offsets.items() if ranges}
        try:
            asked = self._answers(snapshot, spans, KEY_FIELD, keys)
        except (SegmentsError, FileNotFoundError):
            return {}  # the ranges are read, as without an index
        return {number: asked.without(number, offsets[number]) for number in spans}

    def _answers(self, snapshot: Snapshot, offsets: Offsets, field: RecordField, values: Sequence[bytes]) -> _Asked:
        """What the believed runs that have any of the offsets answer. Raises InvalidOptionError where what they have is
        decoded in another way than the field.
        """
        if self._log.is_kafka:
            return _Asked(())
        files = IndexFiles(self._storage, snapshot.topic, index_name(field.on))
        index_list = files.newest_by_copy()
        if index_list.is_damaged:
            raise files.damage(index_list)
        if index_list.exists and index_list.fingerprint != field.fingerprint:
            raise stale_index_error(snapshot.topic, index_list, field)
        if field.may_decode_later:
            values = [*values, UNDECODABLE]
        runs = [run for run in runs_before(index_list, snapshot) if _is_among(run, offsets.get(run.partition, ()))]

        def believed() -> frozenset[str]:
            manifest = self._log.manifest(snapshot.topic)
            return frozenset(run.path for run in believed_runs(index_list, manifest, snapshot))

        def answers() -> list[RunAnswer | None]:
            return self._asked(index_list, runs, values)

        # At once: whether a run is believed rests on commits, and its answer does not. Mostly all runs are.
        questions: list[Callable[[], Any]] = [believed, answers]
        paths, all_answers = self._storage.at_once(operator.call, questions)
        both = zip(runs, all_answers, strict=True)
        return _Asked(tuple((run, answer) for run, answer in both if run.path in paths))

    def forget_erased(
        self, topic: str, *, keys: Sequence[bytes] | None = None, at_once: bool = False, version: int | None = None
    ) -> None:
        """Takes what was erased out of the indexes of a topic; with a `version`, of those not checked up to it yet. Of
        the indexes that fail, the first one's error is raised after all others.
        """
        errors: list[SegmentsError] = []
        for name in indexes(self._storage, topic):
            try:
                self._forget(IndexFiles(self._storage, topic, name), keys, at_once, version)
            except SegmentsError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _forget(self, files: IndexFiles, keys: Sequence[bytes] | None, at_once: bool, version: int | None) -> None:
        """As `forget_erased`, of an index."""
        newest = files.newest_list()
        is_due = version is None or not is_checked(newest, self._log.manifest(files.topic), version)
        update = IndexUpdate(self._log, files, Report("index", dry_run=False))
        is_left = not newest.is_kept
        if newest.is_kept and is_due:
            try:
                update.check(keys=keys, at_once=at_once)
            except UnknownTopicError:  # of a deleted topic no index is believed
                is_left = True
        if is_left and at_once:
            update.delete_left_runs()

    def has_keys(self, topic: str, keys: Sequence[bytes], *, besides: Mapping[int, Collection[int]]) -> bool:
        """Whether an index of the topic has an entry of any of the keys, also of records that have left the log, at
        other offsets than `besides`. What cannot be read may have one.
        """
        for name in indexes(self._storage, topic):
            try:
                if self._has_keys(IndexFiles(self._storage, topic, name), keys, besides):
                    return True
            except SegmentsError:  # `forget_erased` raises it, after all other indexes
                return True
        return False

    def _has_keys(self, files: IndexFiles, keys: Sequence[bytes], besides: Mapping[int, Collection[int]]) -> bool:
        """As `has_keys`, of an index."""
        newest = files.newest_list()
        if newest.is_damaged:
            return True
        if newest.on:  # the hash of a field's value is no hash of a key
            snapshot = self._log.manifest(files.topic).snapshot()
            return newest.topic_id == snapshot.topic_id and any(has_lost(run, snapshot) for run in newest.runs)
        answers = self._asked(newest, newest.runs, keys)
        for run, answer in zip(newest.runs, answers, strict=True):
            if answer is None or answer.is_anywhere:
                return True
            if {*answer.offsets.tolist()} - {*besides.get(run.partition, ())}:
                return True
        return False

    def _asked(self, index_list: IndexList, runs: Sequence[Run], values: Sequence[bytes]) -> list[RunAnswer | None]:
        """What each of some runs of a list answers of values, which are keys or those of a field."""
        if not runs:
            return []
        hashes = hashes_to_find(values, index_list.seed, index_list.hash_bits)
        ask = partial(find_in_run, self._storage, index_list.topic_id, hashes, index_list.hash_bits)
        return list(self._storage.at_once(ask, runs))

    def unneeded_files(self, topic: str, delay_ms: int, now_ms: int) -> tuple[list[FileInfo], list[SegmentsError]]:
        """The files of the indexes of a topic that left them longer than a delay ago, and the error of each index that
        cannot be read: its files are not among them.
        """
        unneeded: list[FileInfo] = []
        errors: list[SegmentsError] = []
        # A run that no list names may be one of a job that runs now: its age is by the clock of the store alone.
        store_ms = min(now_ms, self._storage.now_ms())
        for name in indexes(self._storage, topic):
            files = IndexFiles(self._storage, topic, name)
            try:
                is_deleted = not self._log.is_there(topic)
                since = _files_of_deleted(self._storage, files) if is_deleted else _left_files(self._storage, files)
            except SegmentsError as error:
                errors.append(error)
                continue
            for info, left_ms in since.items():
                if left_ms is None:
                    is_due = store_ms - info.mtime_ms > max(delay_ms, UNNAMED_MS)
                else:
                    is_due = now_ms - left_ms > delay_ms
                if is_due:
                    unneeded.append(info)
        return unneeded, errors

    def topics(self) -> list[str]:
        """The topics that have files of indexes, sorted."""
        return [] if self._log.is_kafka else indexed_topics(self._storage)

    def describe(self, snapshot: Snapshot) -> dict[str, Any]:
        """How far the indexes of a topic reach, and what they take, or the `error` of one that cannot be read:
        `key_index` of its keys, `field_indexes` by the names of fields. Empty where there is none.
        """
        states: dict[str, Any] = {}
        for name in () if self._log.is_kafka else indexes(self._storage, snapshot.topic):
            on, state = self._described(IndexFiles(self._storage, snapshot.topic, name), snapshot)
            if state is not None and on:
                states.setdefault("field_indexes", {})[on] = state
            elif state is not None:
                states["key_index"] = state
        return states

    def _described(self, files: IndexFiles, snapshot: Snapshot) -> tuple[str, dict[str, Any] | None]:
        """(the field that an index is on, how far it reaches); the name of its directory where nobody can tell."""
        on = "" if files.index == index_name("") else files.index
        try:
            index_list = files.newest_list()
            on = index_list.on or on
            if index_list.is_damaged:
                raise files.damage(index_list)
            if not index_list.exists:
                return on, None
            return on, index_state(index_list, self._log.manifest(snapshot.topic), snapshot)
        except SegmentsError as error:
            return on, {"error": str(error)}

    def verify(self, snapshot: Snapshot, findings: Findings) -> None:
        """Compares the indexes of a topic with a scan of all that they have."""
        for name in () if self._log.is_kafka else indexes(self._storage, snapshot.topic):
            verify_index(IndexFiles(self._storage, snapshot.topic, name), self._log, snapshot, findings)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Runs, and what each answered; None: it could not be read."""

    answers: tuple[tuple[Run, RunAnswer | None], ...]

    def ranges(self, snapshot: Snapshot, partition: int, offsets: OffsetRanges) -> OffsetRanges:
        """The ranges among a partition's `offsets` that have all records."""
        own = [(run, answer) for run, answer in self.answers if run.partition == partition and answer is not None]
        certain = [run for run, answer in own if not answer.is_anywhere]
        starts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for _, answer in own:
            if not answer.is_anywhere:
                starts.append(answer.offsets)
                ends.append(answer.offsets + 1)
        near = _near_offsets(snapshot, partition) if own else 0
        ranges: list[tuple[int, int]] = []
        for start, end in offsets:
            scanned = np.array(uncovered((start, end), certain), np.int64).reshape(-1, 2)
            low = np.concatenate([*starts, scanned[:, 0]])
            high = np.concatenate([*ends, scanned[:, 1]])
            inside = (low < end) & (high > start)
            ranges += _joined(low[inside], high[inside], near) or [(start, start)]
        return tuple(ranges)

    def without(self, partition: int, ranges: OffsetRanges) -> OffsetRanges:
        """Those of a partition's ranges, one at least, that certain answers cover, and in which none has a record."""
        certain = [
            (run, answer)
            for run, answer in self.answers
            if run.partition == partition and answer is not None and not answer.is_anywhere
        ]
        offsets = np.sort(np.concatenate([np.zeros(0, np.int64), *(answer.offsets for _, answer in certain)]))
        missing = np.array(uncovered(_span(ranges), [run for run, _ in certain]), np.int64).reshape(-1, 2)
        starts, ends = np.array(ranges, np.int64).T
        has_records = np.searchsorted(offsets, starts) < np.searchsorted(offsets, ends)
        # What no run covers are ranges apart from each other: those that begin before an end, less those that end by
        # the start.
        begun = np.searchsorted(missing[:, 0], ends)
        is_scanned = begun > np.searchsorted(missing[:, 1], starts, side="right")
        is_without = ~(has_records | is_scanned)
        return tuple(itertools.compress(ranges, is_without.tolist()))

    def coverage(self, offsets: Offsets) -> KeyCoverage:
        """What was looked at."""
        certain = [run for run, answer in self.answers if answer is not None and not answer.is_anywhere]
        scanned = 0
        for number, ranges in offsets.items():
            own = [run for run in certain if run.partition == number]
            scanned += sum(end - start for bounds in ranges for start, end in uncovered(bounds, own))
        return KeyCoverage(
            indexed_offsets=_length(offsets) - scanned,
            scanned_offsets=scanned,
            runs=len(self.answers),
            index_bytes=sum(answer.read_bytes for _, answer in self.answers if answer is not None),
            unreadable_runs=sum(answer is None for _, answer in self.answers),
        )


def _joined(starts: np.ndarray, ends: np.ndarray, near: int) -> list[tuple[int, int]]:
    """Ranges in their order, those within `near` offsets of each other as one; more of them where they are too many."""
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps = starts[1:] - ends[:-1]
    if int((gaps > near).sum()) >= MOST_RANGES:
        near = int(np.partition(gaps, len(gaps) - MOST_RANGES)[len(gaps) - MOST_RANGES])
    is_first = np.concatenate([[True], gaps > near])
    lasts = np.append(np.flatnonzero(is_first)[1:] - 1, len(starts) - 1)
    return list(zip(starts[is_first].tolist(), ends[lasts].tolist(), strict=True))


def _near_offsets(snapshot: Snapshot, partition: int) -> int:
    """About how many offsets of a partition lie in NEAR_BYTES of its log."""
    live = snapshot.live_table(partition)
    base, following, log_bytes = (live.column(name).to_numpy() for name in ("base_offset", "next_offset", "log_bytes"))
    offsets, total = int((following - base).sum()), int(log_bytes.sum())
    return NEAR_BYTES * offsets // max(total, 1)


def _is_among(run: Run, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(run.overlaps(run.partition, start, end) for start, end in ranges if start < end)


def _span(ranges: OffsetRanges) -> tuple[int, int]:
    """From the first offset of some ranges to the last."""
    return min(start for start, _ in ranges), max(end for _, end in ranges)


def _length(offsets: Offsets) -> int:
    return sum(end - start for ranges in offsets.values() for start, end in ranges)


def _files_of_deleted(storage: Storage, files: IndexFiles) -> dict[FileInfo, int | None]:
    """As `_left_files`, all files of an index whose topic is gone."""
    listed = storage.list(files.directory, recursive=True)
    superseded: Sequence[SupersededRun] = ()
    with contextlib.suppress(FormatVersionError):  # nobody asks for what a newer version wrote, either
        superseded = files.newest_list().superseded
    since = {run.path: run.since_ms for run in superseded}
    return {info: since.get(info.path) for info in listed}


def _left_files(storage: Storage, files: IndexFiles) -> dict[FileInfo, int | None]:
    """{a file that an index does not need: when it left the index}, None where no list says that."""
    # Listed first, read afterwards: a run that a list names after the listing is too young to be in the list.
    runs = storage.list(f"{files.directory}/runs")
    listing = files.listing()
    newest = files.newest_list()
    named = {run.path for run in newest.runs}
    since = {run.path: run.since_ms for run in newest.superseded}
    old_lists = set(files.old_lists(listing))
    unneeded = [info for info in runs if info.path not in named]
    lists = [info for info in listing.numbers.values() if info.path in old_lists]
    staged = [info for info in listing.others if info.path.endswith(".tmp")]
    return {info: since.get(info.path) for info in [*unneeded, *lists, *staged]}
