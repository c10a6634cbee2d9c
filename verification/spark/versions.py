"""python -m verification.spark.versions [--version V ...] [--short] [--folder DIR] [-- pytest's arguments]: runs
Spark's tests with other versions of PySpark, each in an environment of its own: the connector's matrix, streams with
kills, and each job.

It says what it does as it goes. An environment has that PySpark and borrows every other library of this one. It takes
500 MB; with --folder it stays there for the next run. With --short it runs a test of each thing that a user does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

VERSIONS = ("4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The oldest that is supported, and the newest of each minor version."""

PATHS = (
    "tests/spark",
    "tests/maintenance/test_compact_spark.py",
    "tests/maintenance/test_table.py",
    "tests/test_execution.py",
    "tests/test_examples.py::test_a_standalone_cluster_appends_maintains_and_captures",
)

SHORT = (
    "tests/spark/test_writer.py::test_what_spark_writes_decodes_elsewhere[zstd]",
    "tests/spark/test_writer.py::test_a_read_of_what_was_written_is_the_same",
    "tests/spark/test_catalog.py::test_a_table_made_without_columns_keeps_its_options",
    "tests/spark/test_latest.py::test_the_frame_is_the_newest_record_of_each_key",
    "tests/spark/streams/test_streams_in_spark.py::test_a_crash_between_plan_and_commit_of_batch_0_loses_nothing[earliest]",
    "tests/spark/streams/test_sink_queries.py::test_a_restarted_query_replays_its_last_batch_and_adds_nothing",
    "tests/maintenance/test_compact_spark.py::test_a_session_maintains_a_log",
)
"""Write, read, SQL, view=latest, a stream from a topic and one to a topic over restarts, maintain."""

HERE = "--here"
"""The first argument of a run of pytest in an environment."""

NOT_BEFORE = {
    (4, 1): {
        "decode and encode of columns are Arrow functions, which came with 4.1": (
            "decode_and_encode",
            "test_a_timestamp_is_the_same_moment_in_every_time_zone",
        ),
        "an INSERT names every column of the table": ("test_a_table_of_one_topic_is_inserted_into",),
    },
    (4, 2): {
        "no limits of batches": (
            "test_available_now_in_batches_of_the_limit_over_a_restart",
            "test_trigger_once_reads_all_that_is_there",
            "test_case_20_a_union_goes_on_where_one_of_its_topics_has_nothing_new",
        ),
        "availableNow runs a single batch, after which no watermark moves": (
            "test_case_18_a_watermark_on_the_timestamp",
        ),
        "these play PySpark 4.2": (
            "test_connector_stream_cases.py",
            "test_lag.py",
            "test_promoted_leaders.py",
            "test_stream_reader.py",
            "test_stream_model.py",
            "test_plain_stream.py",
        ),
    },
}
"""{versions below: {why: names of tests, or of files}}"""

NOT_FROM = {
    (4, 3): {"Sail 0.7 answers 'unsupported PySpark version: 4.3.0'": ("test_sail.py",)},
}
"""{versions from here on: {why: names of tests, or of files}}"""


class Selection:
    """Leaves out what the version cannot do."""

    def __init__(self) -> None:
        from spark_segments.spark import PYSPARK

        reasons = [why for version, why in NOT_BEFORE.items() if version > PYSPARK]
        reasons += [why for version, why in NOT_FROM.items() if version <= PYSPARK]
        self._left_out = [name for why in reasons for names in why.values() for name in names]

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.name in self._left_out else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if any(name in item.nodeid for name in self._left_out)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this PySpark, made where it is not there."""
    python = folder / version / "bin" / "python"
    if (folder / version / "made").exists():
        return python
    print(f"PySpark {version}: an environment is made in {folder / version}", flush=True)
    venv.create(folder / version, clear=True)
    with (folder / f"{version}.txt").open("w") as said:  # pip prints hundreds of lines where an index is a folder
        pip = [sys.executable, "-m", "pip", "--python", python]
        install = [*pip, "install", "--no-deps", "--no-compile", f"pyspark=={version}"]
        code = subprocess.run(install, stdout=said, stderr=subprocess.STDOUT).returncode
    if code:
        last = "\n".join((folder / f"{version}.txt").read_text().splitlines()[-10:])
        sys.exit(f"PySpark {version}: pip did not install it ({code})\n{last}")
    [packages] = (folder / version).glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in libraries))
    (folder / version / "made").touch()
    return python


def tested(python: Path, version: str, arguments: list[str]) -> bool:
    """Whether the tests passed. What they print goes on."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
    variables |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)}
    begun = time.monotonic()
    # PySpark 4.0 and 4.1 leave sockets to the garbage collector. Once verbose, pytest names each file as it goes.
    options = ["-v", "-W", "ignore::pytest.PytestUnraisableExceptionWarning", "-W", "ignore::ResourceWarning"]
    command = [python, "-m", "verification.spark.versions", HERE, *options, *(arguments or (*PATHS, "-m", "spark"))]
    print(f"PySpark {version}: {' '.join(command[4:])}", flush=True)
    code = subprocess.run(command, cwd=ROOT, env=variables).returncode
    print(
        f"PySpark {version}: {'passed' if code == 0 else f'failed ({code})'} in {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return code == 0


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs Spark's tests with other versions of PySpark.")
    parser.add_argument("--version", action="append", help=f"one or several; by default {', '.join(VERSIONS)}")
    parser.add_argument("--short", action="store_true", help="a test of each thing that a user does: a minute")
    parser.add_argument("--folder", type=Path, help="where environments stay")
    cut = given.index("--") if "--" in given else len(given)
    arguments, tests = parser.parse_args(given[:cut]), given[cut + 1 :]
    tests = [*(SHORT if arguments.short else ()), *tests]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        passed = [tested(environment(folder, version), version, tests) for version in arguments.version or VERSIONS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == [HERE]:
        sys.exit(pytest.main(sys.argv[2:], plugins=[Selection()]))
    sys.exit(main(sys.argv[1:]))
