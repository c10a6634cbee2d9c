"""Kernels over the batches of segments: index entries, where a segment rolls, and which batches were aborted."""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.sidecars.fields import *


@cython.cfunc
@cython.nogil
def _note_append(
    states: cython.longlong[:, ::1],
    run: i64,
    size: i64,
    max_timestamp: i64,
    offset_of_max: i64,
    interval_bytes: i64,
    max_offset_entries: i64,
    max_time_entries: i64,
) -> i64:
    """Adds an append to a row of states. Returns the sum of ADDED_OFFSET_ENTRY and ADDED_TIME_ENTRY for new entries."""
    added: i64 = 0
    if max_timestamp > states[run, MAX_TIMESTAMP]:
        states[run, MAX_TIMESTAMP] = max_timestamp
        states[run, OFFSET_OF_MAX] = offset_of_max
    if states[run, BYTES_SINCE_ENTRY] > interval_bytes:
        if states[run, OFFSET_ENTRIES] < max_offset_entries:
            states[run, OFFSET_ENTRIES] += 1
            added += ADDED_OFFSET_ENTRY
        newer: cython.bint = states[run, MAX_TIMESTAMP] > states[run, LAST_ENTRY_TIMESTAMP]
        if newer and states[run, TIME_ENTRIES] < max_time_entries:
            states[run, LAST_ENTRY_TIMESTAMP] = states[run, MAX_TIMESTAMP]
            states[run, TIME_ENTRIES] += 1
            added += ADDED_TIME_ENTRY
        states[run, BYTES_SINCE_ENTRY] = 0
    states[run, BYTES_SINCE_ENTRY] += size
    return added


def append(
    position: cython.const[cython.longlong][::1],
    size: cython.const[cython.longlong][::1],
    last_offset: cython.const[cython.longlong][::1],
    max_timestamp: cython.const[cython.longlong][::1],
    run_ends: cython.const[cython.longlong][::1],
    interval_bytes: i64,
    max_offset_entries: i64,
    max_time_entries: i64,
    states: cython.longlong[:, ::1],
    offset_entries: cython.longlong[:, ::1],
    time_entries: cython.longlong[:, ::1],
    ends: cython.longlong[:, ::1],
):
    """Adds batches, each as an append, to the indexes of runs: fills their entries, and where each run's end."""
    offset_count: i64 = 0
    time_count: i64 = 0
    row: i64 = 0
    run: i64
    runs: i64 = run_ends.shape[0]
    added: i64
    with cython.nogil:
        for run in range(runs):
            while row < run_ends[run]:
                added = _note_append(
                    states,
                    run,
                    size[row],
                    max_timestamp[row],
                    last_offset[row],
                    interval_bytes,
                    max_offset_entries,
                    max_time_entries,
                )
                if added & ADDED_OFFSET_ENTRY:
                    offset_entries[offset_count, 0] = last_offset[row]
                    offset_entries[offset_count, 1] = position[row]
                    offset_count += 1
                if added & ADDED_TIME_ENTRY:
                    time_entries[time_count, 0] = states[run, MAX_TIMESTAMP]
                    time_entries[time_count, 1] = states[run, OFFSET_OF_MAX]
                    time_count += 1
                row += 1
            ends[run, 0] = offset_count
            ends[run, 1] = time_count


def first_roll(
    sizes: cython.const[cython.longlong][::1],
    last_offsets: cython.const[cython.longlong][::1],
    max_timestamps: cython.const[cython.longlong][::1],
    row: i64,
    base_offset: i64,
    size_bytes: i64,
    first_timestamp: i64,
    states: cython.longlong[:, ::1],
    segment_bytes: i64,
    roll_ms: i64,
    waited_ms: i64,
    interval_bytes: i64,
    max_offset_entries: i64,
    max_time_entries: i64,
):
    """(row, size_bytes, first_timestamp): the first row that starts a new segment, and the segment before that row.

    `row` is the number of rows where no row starts a new segment. The state of the segment's indexes is row 0 of
    `states`.
    """
    rows: i64 = sizes.shape[0]
    waited: i64
    with cython.nogil:
        while row < rows:
            if size_bytes > 0:
                waited = wrap_i64(max_timestamps[row] - first_timestamp) if first_timestamp >= 0 else waited_ms
                if (
                    size_bytes > segment_bytes - sizes[row]
                    or waited > roll_ms
                    or states[0, OFFSET_ENTRIES] >= max_offset_entries
                    or states[0, TIME_ENTRIES] >= max_time_entries
                    or wrap_i64(last_offsets[row] - base_offset) > MAX_RELATIVE_OFFSET
                ):
                    break
            else:
                first_timestamp = max_timestamps[row]
            _note_append(
                states,
                0,
                sizes[row],
                max_timestamps[row],
                last_offsets[row],
                interval_bytes,
                max_offset_entries,
                max_time_entries,
            )
            size_bytes += sizes[row]
            row += 1
    return row, size_bytes, first_timestamp


def mark_undone(
    producer_ids: cython.const[cython.longlong][::1],
    base_offsets: cython.const[cython.longlong][::1],
    last_offsets: cython.const[cython.longlong][::1],
    txn_producer_ids: cython.const[cython.longlong][::1],
    txn_first_offsets: cython.const[cython.longlong][::1],
    txn_last_offsets: cython.const[cython.longlong][::1],
    undone: cython.uchar[::1],
):
    """Marks each batch into which the producer's last transaction reaches that began at or before the batch's end."""
    row: i64
    rows: i64 = producer_ids.shape[0]
    low: i64
    high: i64
    middle: i64
    with cython.nogil:
        for row in range(rows):
            low = 0
            high = txn_producer_ids.shape[0]
            while low < high:
                middle = (low + high) // 2
                if txn_producer_ids[middle] < producer_ids[row] or (
                    txn_producer_ids[middle] == producer_ids[row] and txn_first_offsets[middle] <= last_offsets[row]
                ):
                    low = middle + 1
                else:
                    high = middle
            undone[row] = (
                low > 0
                and txn_producer_ids[low - 1] == producer_ids[row]
                and txn_last_offsets[low - 1] >= base_offsets[row]
            )
