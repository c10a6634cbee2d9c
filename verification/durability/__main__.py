"""Cuts the power under appenders and jobs, with flush.messages=1 and without: python -m verification.durability
[--losses N]

Exits with 1 where an acknowledged record of the forced topic is lost, or where the unforced topic loses none: then the
disk did not forget.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from verification.durability.run import FORCED, Judged, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.durability", description=__doc__)
    parser.add_argument("--losses", type=int, default=200, help="power losses of each topic")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found: list[Judged] = []
    for name, config in (("flush.messages=1", FORCED), ("the default", {})):
        with tempfile.TemporaryDirectory() as directory:
            judged = run(Path(directory), options.losses, config=config, seed=options.seed)
        found.append(judged)
        wrong = "; ".join(f"{what}: {times}" for what, times in judged.wrong.most_common()) or "nothing"
        records = f"{judged.acknowledged:,} records acknowledged by the last"
        print(f"{name}: {judged.losses} power losses, {records}; wrong: {wrong}", flush=True)
    return int(bool(found[0].wrong) or not found[1].wrong)


if __name__ == "__main__":
    sys.exit(main())
