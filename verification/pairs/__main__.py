"""python -m verification.pairs: plays each pair of operations, in both orders.

A history that fails is printed as a line that --history plays again. Exits with 1 where one fails.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from verification.pairs.histories import GROUNDS, History, pairs, triples
from verification.pairs.operations import OPERATIONS
from verification.pairs.outcomes import Asked, outcome_of
from verification.pairs.readers import READERS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.pairs", description=__doc__)
    parser.add_argument("--list", action="store_true", help="prints operations, readers and grounds")
    parser.add_argument("--operations", default="", help="names with commas: pairs in which one of them is")
    parser.add_argument("--ground", action="append", choices=[*GROUNDS], help="on these; else each pair on one of them")
    parser.add_argument("--triples", type=int, default=0, metavar="N", help="so many random triples, and no pairs")
    parser.add_argument("--history", action="append", metavar="LINE", help='such as "deleted: erase, roll"')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="I/N: each Nth history, from the Ith on")
    parser.add_argument("--slow", action="store_true", help="asks the readers that take longer, too: serve")
    parser.add_argument(
        "--spark", action="store_true", help="Spark reads, too, a batch and a stream from an old checkpoint, and writes"
    )
    parser.add_argument("--without", default="", help="readers that are not asked, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="histories at a time, each in a process")
    options = parser.parse_args()
    if options.list:
        return _listed()
    histories = [*_chosen(options)]
    without = frozenset(filter(None, options.without.split(",")))
    asked = Asked(options.slow or bool(options.history), without, options.spark)
    if options.spark and options.jobs > 1:
        parser.error("--spark has one session, and so one job")
    return _played(histories, asked, options.jobs)


def _listed() -> int:
    for title, names in (
        ("operations", [operation.name for operation in OPERATIONS]),
        ("readers", [reader.name for reader in READERS]),
        ("grounds", GROUNDS),
    ):
        print(f"{title}: {', '.join(names)}")
    print(f"{sum(1 for _ in pairs())} pairs")
    return 0


def _chosen(options: argparse.Namespace) -> Iterator[History]:
    if options.history:
        return (History.of_line(line, options.seed) for line in options.history)
    number, _, parts = options.part.partition("/")
    histories: Iterable[History] = (
        triples(options.triples, options.seed, spark=options.spark)
        if options.triples
        else pairs(options.seed, options.ground or (), spark=options.spark)
    )
    names = {name.strip() for name in options.operations.split(",") if name.strip()}
    chosen = (history for history in histories if not names or names & {*history.operations})
    return itertools.islice(chosen, int(number), None, int(parts))


def _played(histories: list[History], asked: Asked, jobs: int) -> int:
    started, failed, steps = time.monotonic(), 0, 0
    for number, (history, count, fault) in enumerate(_outcomes(histories, asked, jobs), 1):
        steps += count
        if fault:
            failed += 1
            _clear()
            print(f'--seed {history.seed} --history "{history}"\n    {fault}', flush=True)
        if sys.stderr.isatty() or number % 100 == 0:
            print(f"\r{number} of {len(histories)}, {failed} failed", end="", file=sys.stderr, flush=True)
    _clear()
    seconds = time.monotonic() - started
    print(f"{len(histories)} histories, {steps} steps, {len(READERS)} readers in {seconds:.0f} s: {failed} failed")
    return int(failed > 0)


def _clear() -> None:
    print("\r\033[K" if sys.stderr.isatty() else "", end="", file=sys.stderr, flush=True)


def _outcomes(histories: list[History], asked: Asked, jobs: int) -> Iterator[tuple[History, int, str]]:
    if jobs == 1:
        for history in histories:
            yield outcome_of(history, asked)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(outcome_of, histories, itertools.repeat(asked))


if __name__ == "__main__":
    sys.exit(main())
