"""python -m verification.simulation.broker --seed 7: the played broker of a seed, or of many (`--seeds 1-100 --jobs
2`).

Prints a line for each seed, and a summary as JSON. A seed that finds a violation exits with 1. Every run of a seed has
the same events: the line's trace hash says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from verification.simulation.broker.passes import Outcome, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.simulation.broker", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="a single seed")
    which.add_argument("--seeds", help="FROM-TO, both inclusive")
    parser.add_argument("--passes", type=int, default=100, help="of each seed")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, each in a process")
    chosen = parser.parse_args()
    first, last = [chosen.seed] * 2 if chosen.seed is not None else map(int, chosen.seeds.split("-"))
    outcomes = []
    with ProcessPoolExecutor(chosen.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for outcome in pool.map(partial(run, passes=chosen.passes), range(first, last + 1)):
            outcomes.append(outcome)
            text = f" VIOLATION {outcome.violation}" if outcome.violation else ""
            print(
                f"seed {outcome.seed}: {outcome.passes} passes in {outcome.seconds} s, trace {outcome.trace}{text}",
                file=sys.stderr,
                flush=True,
            )
    print(json.dumps(summed(outcomes), indent=2))
    sys.exit(any(outcome.violation for outcome in outcomes))


def summed(outcomes: list[Outcome]) -> dict[str, object]:
    """The figures of all seeds."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    return {
        "seeds": len(outcomes),
        "passes": counts.pop("passes", 0),
        "violations": {outcome.seed: outcome.violation for outcome in outcomes if outcome.violation},
        "counts": dict(sorted(counts.items())),
    }


if __name__ == "__main__":
    main()
