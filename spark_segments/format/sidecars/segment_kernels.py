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
    batches: cython.const[cython.longlong][:, ::1],
    row: i64,
    limits: cython.const[cython.longlong][::1],
) -> i64:
    """Adds a batch as an append to a row of states. Returns the sum of ADDED_OFFSET_ENTRY and ADDED_TIME_ENTRY for new
    entries.
    """
    added: i64 = 0
    if batches[LARGEST_TIMESTAMP, row] > states[run, MAX_TIMESTAMP]:
        states[run, MAX_TIMESTAMP] = batches[LARGEST_TIMESTAMP, row]
        states[run, OFFSET_OF_MAX] = batches[LAST_OFFSET, row]
    if states[run, BYTES_SINCE_ENTRY] > limits[INTERVAL_BYTES]:
        if states[run, OFFSET_ENTRIES] < limits[MOST_OFFSET_ENTRIES]:
            states[run, OFFSET_ENTRIES] += 1
            added += ADDED_OFFSET_ENTRY
        newer: cython.bint = states[run, MAX_TIMESTAMP] > states[run, LAST_ENTRY_TIMESTAMP]
        if newer and states[run, TIME_ENTRIES] < limits[MOST_TIME_ENTRIES]:
            states[run, LAST_ENTRY_TIMESTAMP] = states[run, MAX_TIMESTAMP]
            states[run, TIME_ENTRIES] += 1
            added += ADDED_TIME_ENTRY
        states[run, BYTES_SINCE_ENTRY] = 0
    states[run, BYTES_SINCE_ENTRY] += batches[SIZE, row]
    return added


def append(
    batches: cython.const[cython.longlong][:, ::1],
    run_ends: cython.const[cython.longlong][::1],
    limits: cython.const[cython.longlong][::1],
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
                added = _note_append(states, run, batches, row, limits)
                if added & ADDED_OFFSET_ENTRY:
                    offset_entries[offset_count, 0] = batches[LAST_OFFSET, row]
                    offset_entries[offset_count, 1] = batches[POSITION, row]
                    offset_count += 1
                if added & ADDED_TIME_ENTRY:
                    time_entries[time_count, 0] = states[run, MAX_TIMESTAMP]
                    time_entries[time_count, 1] = states[run, OFFSET_OF_MAX]
                    time_count += 1
                row += 1
            ends[run, 0] = offset_count
            ends[run, 1] = time_count


def first_roll(
    batches: cython.const[cython.longlong][:, ::1],
    row: i64,
    segment: cython.longlong[:, ::1],
    limits: cython.const[cython.longlong][::1],
):
    """The first row from `row` on that starts a new segment, the number of rows where none does. The batches before it
    are added to `segment`, which is a single row of states.
    """
    rows: i64 = batches.shape[1]
    size: i64
    waited: i64
    with cython.nogil:
        while row < rows:
            size = batches[SIZE, row]
            if segment[0, SIZE_BYTES] > 0:
                waited = limits[WAITED_MS]
                if segment[0, FIRST_TIMESTAMP] >= 0:
                    waited = wrap_i64(batches[LARGEST_TIMESTAMP, row] - segment[0, FIRST_TIMESTAMP])
                if (
                    segment[0, SIZE_BYTES] > limits[SEGMENT_BYTES] - size
                    or waited > limits[ROLL_MS]
                    or segment[0, OFFSET_ENTRIES] >= limits[MOST_OFFSET_ENTRIES]
                    or segment[0, TIME_ENTRIES] >= limits[MOST_TIME_ENTRIES]
                    or wrap_i64(batches[LAST_OFFSET, row] - segment[0, BASE_OFFSET]) > MAX_RELATIVE_OFFSET
                ):
                    break
            else:
                segment[0, FIRST_TIMESTAMP] = batches[LARGEST_TIMESTAMP, row]
            _note_append(segment, 0, batches, row, limits)
            segment[0, SIZE_BYTES] += size
            row += 1
    return row


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
