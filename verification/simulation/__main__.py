"""python -m verification.simulation --seed 7: the simulation of a seed, or of many (`--seeds 1-200 --jobs 2`).

Prints a line for each seed, and a summary as JSON. A seed that finds a violation exits with 1; `--trace FILE` has every
event of it. Every run of a seed has the same events: the line's trace hash says so.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path

from verification.simulation.simulation import Outcome, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="a single seed")
    which.add_argument("--seeds", help="FROM-TO, both inclusive")
    parser.add_argument("--commits", type=int, default=1500, help="of each seed")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, each in a process")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stops after so many, with the seeds that ended"
    )
    parser.add_argument("--trace", type=Path, help="file for the events of a single seed")
    parser.add_argument("--summary", type=Path, help="file for the summary, beside the standard output")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if chosen.seed is not None:
        first = last = chosen.seed
    else:
        first, last = map(int, chosen.seeds.split("-"))
    started = time.monotonic()
    outcomes = []
    for outcome in _outcomes(range(first, last + 1), chosen):
        outcomes.append(outcome)
        seconds = time.monotonic() - started
        commits = sum(one.commits for one in outcomes)
        print(
            f"seed {outcome.seed}: {outcome.commits} commits in {outcome.seconds} s, {outcome.virtual_days} days, "
            f"{outcome.kills} kills, {outcome.faults} faults, trace {outcome.trace}"
            + (f" VIOLATION {outcome.violation}" if outcome.violation else "")
            + f" [{len(outcomes)} of {last - first + 1}, {commits} commits, {commits / seconds:.0f} a second]",
            file=sys.stderr,
            flush=True,
        )
    summary = json.dumps(summed(outcomes, time.monotonic() - started), indent=2)
    print(summary)
    if chosen.summary is not None:
        chosen.summary.write_text(summary + "\n")
    sys.exit(any(outcome.violation for outcome in outcomes))


def _outcomes(seeds: range, chosen: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes as they come, until all are there or the minutes are over."""
    deadline = time.monotonic() + chosen.minutes * 60
    if chosen.jobs == 1:
        for seed in seeds:
            with chosen.trace.open("w") if chosen.trace is not None else nullcontext() as trace:
                yield run(seed, chosen.commits, trace)
            if time.monotonic() > deadline:
                return
        return
    pool = ProcessPoolExecutor(chosen.jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = [pool.submit(run, seed, chosen.commits) for seed in seeds]
        for future in as_completed(futures, timeout=min(chosen.minutes * 60, threading.TIMEOUT_MAX)):
            yield future.result()
    except TimeoutError:
        print("The minutes are over.", file=sys.stderr)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def summed(outcomes: list[Outcome], seconds: float) -> dict[str, object]:
    """The figures of all seeds."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    return {
        "seeds": len(outcomes),
        "commits": sum(outcome.commits for outcome in outcomes),
        "violations": {outcome.seed: outcome.violation for outcome in outcomes if outcome.violation},
        "seconds": round(seconds, 1),
        "virtual_days": round(sum(outcome.virtual_days for outcome in outcomes), 1),
        "steps": sum(outcome.steps for outcome in outcomes),
        "kills": sum(outcome.kills for outcome in outcomes),
        "faults": sum(outcome.faults for outcome in outcomes),
        "counts": dict(sorted(counts.items())),
    }


if __name__ == "__main__":
    main()
