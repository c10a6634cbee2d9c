"""What small things ask of a store, and how long they take: this working tree against another commit, in turns.

On a local disk, and on SeaweedFS behind verification/world/stores/store_proxy.py, which holds each request for 50 ms.
Each tree has a process, and a log directory that it has made itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.compare import HERE, Side, exported
from verification.stores.servers import seaweedfs
from verification.world.stores.store_proxy import proxy_process

Counts = Callable[[], Counter[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rev", required=True, help="the other commit")
    parser.add_argument("--delay-ms", type=int, default=50, help="of each request")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        directory = Path(temporary)
        trees = {"now": HERE, "before": exported(arguments.rev, directory / "tree")}
        with contextlib.ExitStack() as stack:
            local = {
                side: stack.enter_context(Side(tree, "_requests_side.py", str(directory / side), "{}"))
                for side, tree in trees.items()
            }
            _compared("local", local, None, arguments.turns, figures, ratios)
        (directory / "store").mkdir()
        with (
            seaweedfs(directory / "store") as (uri, behind),
            proxy_process(behind, arguments.delay_ms) as (options, counts),
            contextlib.ExitStack() as stack,
        ):
            given = json.dumps(options)
            remote = {
                side: stack.enter_context(Side(tree, "_requests_side.py", f"{uri}/{side}", given))
                for side, tree in trees.items()
            }
            _compared(f"{arguments.delay_ms} ms", remote, counts, arguments.turns, figures, ratios)
    return {"turns": arguments.turns, "figures": figures, "ratios": ratios}


def _compared(
    where: str,
    sides: dict[str, Side],
    counts: Counts | None,
    turns: int,
    figures: dict[str, Any],
    ratios: dict[str, float],
) -> None:
    for name in sides["now"].names:
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(turns + 1):  # the first only warms
            for side in sorted(sides, reverse=bool(turn % 2)):
                before = counts() if counts is not None else Counter()
                took = sides[side].seconds(name)
                if turn:
                    seconds[side].append(took)
                if counts is not None:
                    asked = counts() - before
                    figures[f"{where}, {name}, {side}: requests"] = f"{asked.total()} {json.dumps(dict(asked))}"
        for side, all_seconds in seconds.items():
            figures[f"{where}, {name}, {side}: ms"] = round(statistics.median(all_seconds) * 1e3, 1)
        pairs = zip(seconds["now"], seconds["before"], strict=True)
        ratios[f"{where}, {name}: now / before"] = round(statistics.median(now / other for now, other in pairs), 2)
