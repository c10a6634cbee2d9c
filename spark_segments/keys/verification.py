"""A deep look at an index: each believed run is compared with a scan of its offsets."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from spark_segments.errors import SegmentsError
from spark_segments.keys.belief import believed_runs
from spark_segments.keys.hashes import UNDECODABLE, hashed_entries, hashes_to_find
from spark_segments.keys.index_list import IndexFiles, IndexList
from spark_segments.keys.index_plan import selection_of
from spark_segments.keys.key_field import KEY_FIELD
from spark_segments.keys.remedies import rebuild_commands
from spark_segments.keys.run import HashedRecords, Run
from spark_segments.keys.run_file import RunFile
from spark_segments.keys.run_layout import DamagedRunError
from spark_segments.log import Findings, LogDirectory, RecordField, Scan, Snapshot
from spark_segments.storage import Storage


class _Place(TypedDict):
    """Where a finding is."""

    partition: int
    path: str


def verify_index(files: IndexFiles, log: LogDirectory, snapshot: Snapshot, findings: Findings) -> None:
    """Finds runs that cannot be read, and runs that lack a record of the snapshot: a look-up would miss it."""
    try:
        index_list = files.newest_list()
        if index_list.is_damaged:
            raise files.damage(index_list)
        if not index_list.exists:
            return
        field = field_of(log, snapshot, index_list)
    except SegmentsError as error:
        findings.add_error(error, severity=Findings.WARNING)
        return
    if field.fingerprint != index_list.fingerprint:
        return  # no look-up uses it
    what = index_list.what
    remedy = rebuild_commands(files.topic, index_list)
    for run in believed_runs(index_list, log.manifest(snapshot.topic), snapshot):
        place: _Place = {"partition": run.partition, "path": run.path}
        try:
            missing = _missing_records(files.storage, run, index_list, snapshot, field)
        except FileNotFoundError:
            message = f"A run of the index of {what} is missing: its offsets are scanned. {remedy}"
            findings.add(message, severity=Findings.WARNING, **place)
        except DamagedRunError as error:
            message = f"A run of the index of {what} is damaged: its offsets are scanned. {remedy}"
            findings.add(message, severity=Findings.WARNING, found=str(error), **place)
        else:
            if missing:
                message = f"A run of the index of {what} lacks records, which a look-up does not find. {remedy}"
                findings.add(message, expected="an entry for each record that has one", found=missing, **place)


def field_of(log: LogDirectory, snapshot: Snapshot, index_list: IndexList) -> RecordField:
    """The field that an index is on, decoded as the index decodes it. Raises InvalidOptionError, RegistryError."""
    if not index_list.on:
        return KEY_FIELD
    return log.values.field(snapshot, index_list.on, index_list.formats)


def _missing_records(storage: Storage, run: Run, index_list: IndexList, snapshot: Snapshot, field: RecordField) -> str:
    """What a run lacks, in words; empty where it has all records of the snapshot in its offsets.

    Records that have left the log since may have entries. So both sides count the entries of records that are in the
    log, and sum up a number of each. Memory is a byte for each offset of the run.
    """
    file = RunFile(storage, run, index_list.topic_id)
    scattered = np.concatenate([part.scattered[0] for part in file.all_records()])
    is_live = np.zeros(run.end_offset - run.base_offset, np.bool_)
    is_counted = np.ones(len(is_live), np.bool_)
    if field.may_decode_later:  # each look-up looks at what could not be decoded, also where it can be by now
        refused = file.find(hashes_to_find([UNDECODABLE], index_list.seed, index_list.hash_bits))
        is_counted[refused.offsets - run.base_offset] = False
        is_counted &= not refused.is_anywhere
    in_log, in_run = _Sum(), _Sum()
    bounds = {run.partition: ((run.base_offset, run.end_offset),)}
    for batch in Scan(storage, snapshot, bounds, selection_of(field)).batches():
        hashes, rows, _ = hashed_entries(field, batch, index_list.seed, index_list.hash_bits)
        offsets = batch.column("offset").to_numpy()[rows] - run.base_offset
        counts = ~np.isin(hashes, scattered) & is_counted[offsets]
        is_live[offsets[counts]] = True
        in_log.add(hashes[counts], offsets[counts])
    records = 0
    for part in file.all_records():
        records += part.count
        counts = _inside(part, len(is_live)) & ~np.isin(part.hashes, scattered)
        counts[counts] = is_live[part.offsets[counts]]
        in_run.add(part.hashes[counts], part.offsets[counts])
    if records != run.records:
        raise DamagedRunError("other counts than the list says")
    return "" if in_log.equals(in_run) else f"{in_run.count} of {in_log.count} records in the log"


def _inside(part: HashedRecords, offsets: int) -> np.ndarray:
    inside: np.ndarray = (part.offsets >= 0) & (part.offsets < offsets)
    return inside


class _Sum:
    """How many records were added, and the sum of a number of each, in any order."""

    def __init__(self) -> None:
        self.count = 0
        self._total = 0

    def add(self, hashes: np.ndarray, offsets: np.ndarray) -> None:
        mixed = (hashes ^ (offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xC2B2AE3D27D4EB4F)
        self.count += len(hashes)
        self._total = (self._total + int((mixed ^ (mixed >> np.uint64(29))).sum(dtype=np.uint64))) % (1 << 64)

    def equals(self, other: _Sum) -> bool:
        return (self.count, self._total) == (other.count, other._total)
