"""python -m verification.kills soak|crashes|restarts|mirrors|failovers|rounds: long runs of what tests do briefly."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from verification.kills import crashes, failovers, mirrors, model_rounds, restarts, soak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.kills", description=__doc__)
    runs = parser.add_subparsers(dest="run", required=True)
    one = runs.add_parser("soak", help=soak.__doc__.splitlines()[0])
    one.add_argument("--seconds", type=float, default=120)
    one.add_argument(
        "--delay-ms", type=int, default=10_000, help="file.delete.delay.ms: for how long a reader may take"
    )
    two = runs.add_parser("crashes", help=crashes.__doc__.splitlines()[0])
    two.add_argument("--trials", type=int, default=50, help="of each job")
    three = runs.add_parser("restarts", help=restarts.__doc__.splitlines()[0])
    three.add_argument("--trials", type=int, default=50, help="processes killed")
    four = runs.add_parser("mirrors", help=mirrors.__doc__.splitlines()[0])
    four.add_argument("--trials", type=int, default=50, help="mirrors killed")
    five = runs.add_parser("failovers", help=failovers.__doc__.splitlines()[0])
    five.add_argument("--trials", type=int, default=50, help="processes killed")
    six = runs.add_parser("rounds", help=model_rounds.__doc__.splitlines()[0])
    six.add_argument("--trials", type=int, default=60, help="rounds")
    for run in (one, two, three, four, five, six):
        run.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if chosen.run == "soak":
            figures = soak.run(Path(directory), chosen.seconds, delay_ms=chosen.delay_ms, seed=chosen.seed)
        else:
            others = {"crashes": crashes, "restarts": restarts, "mirrors": mirrors, "failovers": failovers}
            others["rounds"] = model_rounds
            figures = others[chosen.run].run(Path(directory), chosen.trials, seed=chosen.seed)
    for name, value in figures.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
