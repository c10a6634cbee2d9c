"""python -m tests.benchmarks codec|spark|compact|plan [--output json]: measures, and prints what it measured.

A benchmark is a module here with `run(arguments) -> dict`, and `add_arguments(parser)` where it takes any of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> None:
    there = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    benchmarks = parser.add_subparsers(dest="benchmark", required=True)
    chosen = next((name for name in argv if name in there), None)
    for name in there:
        one = benchmarks.add_parser(name)
        one.add_argument("--output", choices=("text", "json"), default="text")
        if name == chosen:
            module = importlib.import_module(f"tests.benchmarks.{name}")
            if hasattr(module, "add_arguments"):
                module.add_arguments(one)
    arguments = parser.parse_args(argv)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    found = {"benchmark": arguments.benchmark, **machine, **module.run(arguments)}
    if arguments.output == "json":
        print(json.dumps(found))
    else:
        _print(found)


def _print(value: Any, indent: int = 0) -> None:
    pad = "  " * indent
    for name, one in value.items():
        if isinstance(one, dict):
            print(f"{pad}{name}:")
            _print(one, indent + 1)
        elif isinstance(one, list):
            for entry in one:
                print(
                    f"{pad}{name}: "
                    + (", ".join(f"{k} {v}" for k, v in entry.items()) if isinstance(entry, dict) else str(entry))
                )
        else:
            print(f"{pad}{name}: {one}")


if __name__ == "__main__":
    main(sys.argv[1:])
