"""python -m verification.hostile --inputs N --seed S: mutated inputs for all that reads bytes and texts of others.

The summary is JSON. A failure names target, seed and input; --input runs that one alone in this process:
python -m verification.hostile --target decoder --seed 1 --input 4711
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from verification.hostile import campaign
from verification.hostile.child import Share, random_of
from verification.hostile.targets import TARGETS, prepared


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.hostile", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, shared out over the targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this; several times, too")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--input", type=int, help="run this input of --target alone, with its traceback")
    parser.add_argument("--output", type=Path, help="write the summary there, too, and what is known of it meanwhile")
    given = parser.parse_args()
    if given.input is not None:
        [target] = given.target
        prepared(target)(random_of(Share(target, given.seed, 0, 0), given.input))
        return

    def write(figures: dict[str, Any]) -> None:
        if given.output is not None:
            given.output.write_text(json.dumps(figures, indent=1))

    figures = campaign.run(given.inputs, given.seed, given.target or (), given.processes, write)
    write(figures)
    print(json.dumps(figures, indent=1))
    sys.exit(3 if figures["failed"] else 0)


if __name__ == "__main__":
    main()
