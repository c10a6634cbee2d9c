"""Rounds of compaction by 1, 2 and 4 threads in turns, against the plain model of a partition.

By hand: python -m verification.kills rounds --trials 60
"""

from __future__ import annotations

import random
from pathlib import Path

from verification.world.clock import store_clock
from verification.world.compacted_log import NEVER_MS, Work, settle
from verification.world.plain_partition import Record, Rules
from verification.world.small_limits import small_limits

THREADS = (1, 2, 4)
KEYS = 300
MAP_BYTES = (48 * 20, 48 * 100, 1 << 20)  # room for some keys, or for all


def run(directory: Path, trials: int, seed: int = 1) -> dict[str, int]:
    """Plays so many rounds. Raises AssertionError where a record is there that the model has not, or the reverse."""
    chance = random.Random(seed)
    work = Work(str(directory / "log"), Rules(0, 1000, 0, NEVER_MS, None), 20_000, "zstd")
    small = small_limits(MIN_SLICE_BYTES=1, LARGE_PARTITION_BYTES=0, LARGE_SHARE=0, LEAST_GAP_BYTES=1)
    with store_clock(lambda: work.now_ms), small:
        for number in range(trials):
            for _ in range(chance.randint(1, 6)):
                work.append([_record(chance) for _ in range(chance.randint(1, 400))])
                work.seal()
                work.now_ms += chance.choice((0, 1, 500, 3000))
            meanwhile = [_record(chance)] if chance.random() < 0.3 else None
            work.compact(chance.choice(MAP_BYTES), meanwhile, THREADS[number % len(THREADS)])
            work.check()
            if chance.random() < 0.3:
                work.vacuum()
        settle(work)
    return {"rounds": trials, "records": len(work.written), "records left": len(work.model.visible())}


def _record(chance: random.Random) -> Record:
    value = None if chance.random() < 0.1 else chance.randbytes(chance.randint(0, 60))
    return b"%d" % chance.randrange(KEYS), value
