"""Compaction, retention, rolling and vacuum in any order, against a plain model that is told only where segments end.

Appends go to files of their own or to shared objects, which a second partition always has a part of.
"""

from __future__ import annotations

import tempfile

from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from verification.world.clock import store_clock
from verification.world.compacted_log import NEVER_MS, Work, settle
from verification.world.plain_partition import Rules

rules = st.builds(
    Rules,
    min_ratio=st.sampled_from([0, 0, 0.7]),
    delete_retention_ms=st.sampled_from([1, 1000]),
    min_lag_ms=st.sampled_from([0, 0, 1000]),
    max_lag_ms=st.sampled_from([NEVER_MS, 3000]),
    retention_ms=st.sampled_from([None, 2000]),
)
rows = st.lists(
    st.tuples(st.sampled_from([None, b"", b"a", b"b", b"c", b"d", b"e"]), st.sampled_from([None, b"", b"1", b"2"])),
    min_size=1,
    max_size=8,
)
maps = st.sampled_from([48, 72, 96, 4096])  # bytes: room for one key, two, three, and all
pauses = st.sampled_from([0, 1, 500, 1000, 3000])  # before each step, in ms
steps = st.lists(
    st.tuples(
        pauses,
        st.one_of(
            st.tuples(st.just("append"), rows, st.booleans()),
            st.tuples(st.just("append"), rows, st.booleans()),
            st.tuples(st.just("seal")),
            st.tuples(st.just("roll")),
            st.tuples(st.just("vacuum")),
            st.tuples(st.just("compact"), maps, st.none() | rows),
            st.tuples(st.just("retain"), st.sampled_from([0, 0, 1, 3])),
        ),
    ),
    min_size=6,
    max_size=18,
)


def cleaned_every(pause_ms: int, *values: bytes | None) -> list[tuple]:
    """A record of a key of its own each time, sealed and, after the pause, cleaned."""
    found = []
    for number, value in enumerate(values):
        found += [(0, ("append", [(b"%d" % number, value)])), (0, ("seal",)), (pause_ms, ("compact", 4096, None))]
    return found


# To the millisecond: a segment is too young no longer; a tombstone goes though cleanings have come meanwhile.
@example(Rules(0, 1, 1000, NEVER_MS, None), 1 << 20, "zstd", cleaned_every(1000, b"1"))
@example(Rules(0, 1000, 0, NEVER_MS, None), 1 << 20, "zstd", cleaned_every(500, None, b"1", b"2"))
@examples(10)
@given(
    rules=rules,
    segment_bytes=st.sampled_from([300, 1 << 20]),
    compression=st.sampled_from(["uncompressed", "zstd"]),
    steps=steps,
)
def test_a_log_is_what_the_rules_leave_whatever_is_done_to_it(rules, segment_bytes, compression, steps):
    with tempfile.TemporaryDirectory() as directory:
        work = Work(directory, rules, segment_bytes, compression)
        with store_clock(lambda: work.now_ms):
            for pause_ms, (name, *values) in steps:
                work.now_ms += pause_ms
                getattr(work, name)(*values)
                if name != "append":
                    work.check()
            settle(work)
