"""Explores every scenario of the commit protocol to exhaustion, plays paths on the real code, and finds the planted
faults: python -m verification.protocol [--faults N] [--replays N] [--seed N]

Prints a line for each scenario and each fault. Exits with 1 where a promise is broken or a fault is not found.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice

from verification.protocol.explore import explore, walks
from verification.protocol.planted import counterexample
from verification.protocol.replay import Theatre, without_waiting
from verification.protocol.scenarios import FAULTS, SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.protocol", description=__doc__)
    parser.add_argument("--faults", type=int, help="what may go wrong in a scenario, where not as many as it says")
    parser.add_argument("--replays", type=int, default=500, help="paths of each scenario that the real code plays")
    parser.add_argument("--seed", type=int, default=1, help="draws the paths")
    options = parser.parse_args()
    good = True
    print(f"{'scenario':42} faults    states transitions   ends  played   steps      s")
    with without_waiting():
        theatre = Theatre()
        totals = [0, 0, 0, 0, 0]
        for scenario in SCENARIOS:
            started = time.monotonic()
            scenario = scenario if options.faults is None else scenario.with_faults(options.faults)
            found = explore(scenario)
            played = steps = 0
            if found.broken is None:
                for trace in islice(walks(found, options.seed), options.replays):
                    theatre.play(scenario, trace)
                    played, steps = played + 1, steps + len(trace)
            figures = (len(found.reached), found.transitions, found.final, played, steps)
            totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
            _print(scenario.name, str(scenario.faults), figures, f"{time.monotonic() - started:6.1f}")
            if found.broken is not None:
                good = False
                print(f"  BROKEN: {found.broken}: {'; '.join(str(step) for step, _ in found.trace)}")
    _print("all", "", totals, "")
    print(f"\n{'fault planted in the model':64} promise that it breaks, and the shortest way there")
    for name, rules in FAULTS.items():
        found = counterexample(rules)
        if found is None:
            good = False
            print(f"{name:64} NOT FOUND")
        else:
            print(f"{name:64} {found.broken}: {'; '.join(str(step) for step, _ in found.trace)}")
    return 0 if good else 1


def _print(name: str, faults: str, figures: tuple[int, ...] | list[int], seconds: str) -> None:
    states, transitions, ends, played, steps = figures
    print(f"{name:42} {faults:>6} {states:9,} {transitions:11,} {ends:6,} {played:7,} {steps:7,} {seconds}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
