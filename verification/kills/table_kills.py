"""python -m verification.kills.table_kills [--kills 20]: examples/changelog_to_table.py, killed at random moments and
started again, and in the end its tables compared with the topic: the latest one and the plain one. Then two writers of
one table, killed in turns while its topic grows, for each format and each view.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable

from spark_segments import LogDir
from verification.kills.table_rows import content, readable, update, with_orders
from verification.world.topics import append

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "changelog_to_table.py"
ROUNDS_A_RUN = 6
LINES_A_ROUND = 3
COLUMNS = ["partition", "offset", "key", "value", "headers", "timestamp"]


def killed_and_ended(directory: Path, kills: int, seed: int, environment: Mapping[str, str]) -> tuple[int, int]:
    """(runs, commits to the plain table) until so many runs were killed, and one went to its end. Raises AssertionError
    where a table is not what its topic is.
    """
    choose = random.Random(seed)
    log_dir, table = str(directory / "log"), str(directory / "table")
    variables = {**environment, "PYTHONUNBUFFERED": "1"}
    landed = runs = 0
    while landed < kills:
        runs += 1
        command = [sys.executable, str(EXAMPLE), log_dir, table, "--rounds", str(ROUNDS_A_RUN * runs)]
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            assert run.stdout is not None
            # A random place of the work: a moment after one of the lines that say what was done.
            said = [run.stdout.readline() for _ in range(choose.randrange(1, LINES_A_ROUND * ROUNDS_A_RUN * runs))]
            try:
                run.wait(timeout=choose.uniform(0.0, 0.1))
                assert run.returncode == 0, "".join(said) + run.stdout.read()
            except subprocess.TimeoutExpired:
                os.kill(run.pid, signal.SIGKILL)
                landed += 1
    rounds = ROUNDS_A_RUN * (runs + 1)
    subprocess.run(
        [sys.executable, str(EXAMPLE), log_dir, table, "--rounds", str(rounds)],
        env=dict(environment),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    log = LogDir.open(log_dir)
    for uri, view in ((table, "latest"), (f"{table}-records", None)):
        scan = log.topic("accounts").scan(columns=COLUMNS, view=view, include_tombstones=view is None)
        found = DeltaTable(uri).to_pyarrow_table(columns=COLUMNS).to_pylist()
        assert sorted(found, key=_place) == sorted(scan.to_table().to_pylist(), key=_place) != []
    # Each round's 2,000 changes are in the log once, whatever was killed when.
    assert sum(end for _, end in log.topic("accounts").offsets().values()) == rounds * 2000
    return runs + 1, DeltaTable(f"{table}-records").version()


UPDATES = """
import sys
from spark_segments import LogDir
from verification.kills.table_rows import content, readable, update, with_orders
from verification.world.topics import append
from spark_segments.maintenance import table
log_dir, uri, table_format = sys.argv[1:]
while True:
    table(LogDir.open(log_dir), topics=["orders"], table_uri=uri, table_format=table_format)
"""


def two_writers_killed(
    log: LogDir, uri: str, kills: int, choose: random.Random, environment: Mapping[str, str]
) -> None:
    """Two processes bring the table in step all the time. Each is killed in turns, and started again."""
    command = [sys.executable, "-c", UPDATES, log.uri, uri, Path(uri).parent.name]
    writers = [subprocess.Popen(command, env=environment) for _ in range(2)]
    try:
        for number in range(kills):
            writer = writers[number % 2]
            for _ in range(5):
                append(log, (b"%d" % choose.randrange(9), b"%d" % number))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    writer.wait(timeout=choose.uniform(0.1, 0.4))
            assert writer.poll() is None
            writer.kill()
            writer.wait()
            writers[number % 2] = subprocess.Popen(command, env=environment)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    update(log, uri)


def _place(row: dict[str, int]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"PYTHONPATH": path}
        runs, version = killed_and_ended(Path(directory), arguments.kills, arguments.seed, environment)
        for table_format, view in itertools.product(["delta", "iceberg"], [None, "latest"]):
            place = f"{directory}/{view}/{table_format}"
            log, uri = with_orders(LogDir.create(f"{place}-log")), f"{place}/table"
            update(log, uri, view=view)
            two_writers_killed(log, uri, arguments.kills, random.Random(arguments.seed), environment)
            assert content(uri) == readable(log, view=view)
    print(
        f"{arguments.kills} of {runs} runs were killed (seed {arguments.seed}): the tables, the plain one at version "
        f"{version}, have the rows of the topic, and each change is in the log once. Of two writers of a table of each "
        f"format and view as many were killed: the rows are those of the topic"
    )


if __name__ == "__main__":
    main()
