"""A process that runs many inputs of one target. What it is at stands in shared memory: a crash names its input."""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import mmap
import resource
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

NOW, DONE, REFUSED, FAILED, SLOWEST_US, SLOWEST_INPUT, PEAK_KIB, READY = range(8)
FIELDS = 8

MOST_SECONDS = 10.0
"""Upper bound on the time of one input, in seconds of this process's own CPU time."""

MOST_GROWTH_KIB = 700 << 10
"""Upper bound on what an input adds to the process's peak memory: a section decompresses to 256 MiB at most."""

MOST_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Share:
    """The inputs [first, first + count) of a target under a seed."""

    target: str
    seed: int
    first: int
    count: int


def state_of(path: Path, *, new: bool = False) -> np.ndarray:
    """int64[FIELDS] in a file that parent and child share."""
    if new:
        path.write_bytes(bytes(8 * FIELDS))
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)


def random_of(share: Share, number: int) -> Random:
    """The random numbers that an input is made of."""
    return Random(f"{share.seed}/{share.target}/{number}")


def run(share: Share, state: np.ndarray) -> list[dict[str, object]]:
    """Runs the inputs and returns the failures."""
    from spark_segments.errors import SegmentsError
    from verification.hostile.targets import prepared

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    target = prepared(share.target)
    failures: list[dict[str, object]] = []
    state[READY] = 1
    peak = _peak_kib()
    for number in range(share.first, share.first + share.count):
        state[NOW] = number
        started = time.process_time()
        problem = None
        try:
            target(random_of(share, number))
        except SegmentsError as error:
            state[REFUSED] += 1
            if not str(error).strip() or "\n" in str(error):
                problem = f"the error is not one line: {error!r}"
        except MemoryError as error:
            problem = f"{type(error).__name__}: {error}"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        spent = time.process_time() - started
        if spent * 1e6 > state[SLOWEST_US]:
            state[SLOWEST_US], state[SLOWEST_INPUT] = spent * 1e6, number
        grown = _peak_kib() - peak
        peak += grown
        if problem is None and spent > MOST_SECONDS:
            problem = f"it took {spent:.1f} s"
        if problem is None and grown > MOST_GROWTH_KIB:
            problem = f"it took {grown >> 10} MiB"
        state[PEAK_KIB] = peak
        state[DONE] += 1
        if problem is not None:
            state[FAILED] += 1
            if len(failures) < MOST_FAILURES:
                failures.append({"target": share.target, "seed": share.seed, "input": number, "problem": problem[:500]})
    return failures


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("state", type=Path)
    given = parser.parse_args()
    faulthandler.enable()
    limit = 12 << 30  # address space: a guard for the machine, far above what any input may take
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    share = Share(given.target, given.seed, given.first, given.count)
    json.dump(run(share, state_of(given.state)), sys.stdout)


if __name__ == "__main__":
    main()
