"""Where a look-up expects hashes in a run by what the list of runs says, before the footer of the run is read."""

from __future__ import annotations

import math

import numpy as np

from spark_segments.keys.run import Run
from spark_segments.keys.run_layout import PAGE_BYTES, entries_a_page, page_range

AHEAD_BYTES = 64 << 10
"""So many bytes of a run are read for a hash at most, with the footer; a run of fewer bytes is read whole."""

MOST_AHEAD = 16
"""Of more hashes the pages are read by the footer: they may be all over the run."""

RECORDS_A_KEY = 25
LEAST_ENTRIES = 512


def expected_entries(run: Run, hashes: np.ndarray, hash_bits: int) -> list[tuple[int, int]]:
    """The ranges of entries, whole pages of them, that probably have hashes (uint64[n], sorted)."""
    if not run.entry_bytes or len(hashes) > MOST_AHEAD:
        return []
    most = (AHEAD_BYTES - run.footer_bytes - 2 * PAGE_BYTES) // (2 * run.entry_bytes)
    if most < LEAST_ENTRIES:
        return []
    a_page = entries_a_page(run.entry_bytes)
    before = (0, *run.fan_out, run.entries)
    part_bits = (len(run.fan_out) + 1).bit_length() - 1
    ranges: list[tuple[int, int]] = []
    for hashed in hashes.tolist():
        part, rest = hashed >> (hash_bits - part_bits), hashed & ((1 << (hash_bits - part_bits)) - 1)
        low, high = before[part], before[part + 1]
        expected = low + ((high - low) * rest >> (hash_bits - part_bits))
        # Hashes are uniform, and each brings the entries of its key: of so many in a part, the number before a place
        # has this deviation from what is expected, at its middle.
        deviation = math.sqrt(RECORDS_A_KEY * (high - low)) / 2
        near = min(most, int(2 * deviation) + LEAST_ENTRIES)
        first = max(low, expected - near) // a_page * a_page
        last = min(run.entries, -(-min(high, expected + near) // a_page) * a_page)
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
        elif first < last:
            ranges.append((first, last))
    return ranges


def entry_pages(run: Run, first: int, last: int) -> tuple[int, int]:
    """The bytes [start, end) of the pages that have some entries of a run."""
    start, end, _ = page_range(first, last, run.entries, run.entry_bytes, entries_a_page(run.entry_bytes))
    return start, end
