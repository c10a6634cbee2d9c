"""Records as lines, both ways: `consume` with -f and as JSON, `append` of lines and of JSON, beside kcat where it is
installed.

Keys of 16 digits, values of some 100 bytes of JSON, zstd. Figures are CPU time, without that of a command that does
nothing, since a busy machine does not lengthen it much; kcat's is its own, without that of the server it reads from.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import children_seconds
from benchmarks.serve import _process, _serve_command
from spark_segments import LogDir

_TOPIC = "orders"
_TEMPLATE = "%k %v\\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=2_400_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory)))
        uri, records = _made(directory / "log", arguments.records), arguments.records
        consume = ["consume", uri, _TOPIC, "--quiet"]
        forms = {"consume -f": ["-f", _TEMPLATE], "consume, text": [], "consume, JSON": ["--output", "json"]}
        cases: dict[str, Callable[[], None]] = {"nothing": partial(_segments, *consume, "-n", "0", output=None)}
        for name, form in forms.items():
            cases[name] = partial(_segments, *consume, *form, output=directory / name)
        numbers, parsed = count(), ["--property", "parse.key=true", "--property", "key.separator= "]
        inputs = {"append, lines": ("consume -f", parsed), "append, JSON": ("consume, JSON", ["--format", "json"])}
        for name, (source, options) in inputs.items():
            cases[name] = partial(_append, uri, numbers, str(directory / source), options)
        if kcat := shutil.which("kcat"):
            port = stack.enter_context(_process(_serve_command(uri)))
            read = [kcat, "-b", f"127.0.0.1:{port}", "-C", "-t", _TOPIC, "-o", "beginning", "-e", "-q"]
            cases["kcat -f"] = partial(_run, [*read, "-f", "%k %s\\n"], None)
            cases["kcat -J"] = partial(_run, [*read, "-J"], None)
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(arguments.turns):
            for name, case in cases.items():
                before = children_seconds()
                case()
                seconds[name].append(children_seconds() - before)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    net = {
        name: found - (0 if "kcat" in name else medians["nothing"])
        for name, found in medians.items()
        if name != "nothing"
    }
    figures = {f"{name}, million records a CPU second": round(records / 1e6 / one, 2) for name, one in net.items()}
    ratios = {f"{a} / {b}": round(net[b] / net[a], 2) for a, b in _BESIDE if b in net}
    return {"figures": {"a command that does nothing, s": round(medians["nothing"], 2), **figures}, "ratios": ratios}


_BESIDE = (("consume -f", "kcat -f"), ("consume, JSON", "kcat -J"))


def _made(directory: Path, records: int) -> str:
    log = LogDir.create(str(directory))
    log.create_topic(_TOPIC, 1, {"compression.type": "zstd"})
    for first in range(0, records, 100_000):
        numbers = range(first, min(first + 100_000, records))
        value = '{"id":%d,"name":"customer %d","city":"Zürich","note":"one of many lines","amount":%d.25,"open":true}'
        keys = pa.array([b"%016d" % number for number in numbers])
        values = pa.array([(value % (number, number * 7, number % 1000)).encode() for number in numbers])
        log.topic(_TOPIC).append(pa.table({"key": keys, "value": values}))
    return str(directory)


def _append(uri: str, numbers: count, source: str, options: list[str]) -> None:
    topic = f"copy-{next(numbers)}"
    _segments("append", uri, topic, "--partitions", "1", "--input", source, *options, output=None)


def _segments(*command: str, output: Path | None) -> None:
    _run([sys.executable, "-m", "spark_segments", *command], output)


def _run(command: list[str], output: Path | None) -> None:
    with contextlib.ExitStack() as stack:
        to = subprocess.DEVNULL if output is None else stack.enter_context(output.open("wb"))
        subprocess.run(command, stdout=to, stderr=subprocess.DEVNULL, check=True)
