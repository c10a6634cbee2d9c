"""python -m benchmarks NAME: prints figures. --help lists the names.

A benchmark is a module here with `run(arguments) -> result` (measure.py says what that is), and
`add_arguments(parser)` where it takes any of its own.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import measure


def main(argv: list[str]) -> None:
    there = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    there.remove("measure")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    benchmarks = parser.add_subparsers(dest="benchmark", required=True)
    chosen = next((name for name in argv if name in there), None)
    for name in there:
        one = benchmarks.add_parser(name)
        one.add_argument("--output", choices=("text", "json"), default="text")
        if name == chosen:
            module = importlib.import_module(f"benchmarks.{name}")
            if hasattr(module, "add_arguments"):
                module.add_arguments(one)
    arguments = parser.parse_args(argv)
    found = {"benchmark": arguments.benchmark, "machine": measure.machine(), **module.run(arguments)}
    measure.show(found, arguments.output)


if __name__ == "__main__":
    main(sys.argv[1:])
