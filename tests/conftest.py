"""What tests of all folders share. Nothing here starts Spark before a test asks for the fixture `spark`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from spark_segments import LogDir
from spark_segments.log import Scan
from tests.examples import GATE_EXAMPLES, PROOF_EXAMPLES
from verification.world.checkout import ROOT
from verification.world.kafka_bytes.golden_files import LARGE_DIRECTORIES
from verification.world.small_limits import Limits, small_limits
from verification.world.stores.s3_server import s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's JVMs live for minutes here, and for seconds in some tests: the second compiler costs more than it brings.
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, "-XX:TieredStopAtLevel=1")

# The same examples in every run, however busy the machine is: `make proof` tries five times as many as the gate.
# `--hypothesis-profile=default` looks for others, and `--hypothesis-profile=long` for very many more. Both shrink what
# fails, which can take minutes; a run of all does not.
_ANY_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("long", max_examples=5000, database=None, **_ANY_MACHINE)
for name, most in (("gate", GATE_EXAMPLES), ("proof", PROOF_EXAMPLES)):
    settings.register_profile(
        name,
        max_examples=most,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.target],
        **_ANY_MACHINE,
    )
settings.load_profile("gate")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests `spark` that use its fixture or have it for a parameter, and `proof` that read a large directory or
    are more than the `cases` of their mark: those stay that lie evenly from the first to the last, which differ in all
    parameters.

    Tests that share what a module makes once, or the browser, run in one process of pytest-xdist: each process would
    make its own.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        session = "spark" in getattr(item, "fixturenames", ()) or "spark" in map(str, parameters.values())
        if session:
            item.add_marker("spark")
        if not LARGE_DIRECTORIES.isdisjoint(map(str, parameters.values())):
            item.add_marker("proof")
        if item.get_closest_marker("cases") and not item.get_closest_marker("proof"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        if session:
            item.add_marker(pytest.mark.xdist_group("spark"))  # one process of pytest-xdist, so one session
        elif item.get_closest_marker("spark") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("spark-processes"))  # one after the other
        elif not item.get_closest_marker("xdist_group") and (shared := shared_by(item)):
            item.add_marker(pytest.mark.xdist_group(shared))
    for function in functions.values():
        (most,) = function[0].get_closest_marker("cases").args
        stay = {number * (len(function) - 1) // max(most - 1, 1) for number in range(most)}
        for number, item in enumerate(function):
            if number not in stay:
                item.add_marker("proof")


def shared_by(item: pytest.Item) -> str | None:
    """What a test shares with others: the browser, or what its module makes once."""
    if not isinstance(item, pytest.Function):
        return None
    if "browser" in item.fixturenames:
        return "browser"
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return item.module.__name__ if any(found[-1].scope == "module" for found in definitions) else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small Spark for all tests, not in UTC: a timestamp that is taken for local time somewhere shows.

    With TESTS_ON=sail in the environment it is a session on Sail (see verification/spark/on_sail.py).
    """
    if os.environ.get("TESTS_ON") == "sail":
        from verification.spark.sail_server import sail_session

        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # pyspark's functions make columns of Connect

        with sail_session(tmp_path_factory.mktemp("sail")) as remote:
            yield remote  # type: ignore[misc]
        return
    from spark_segments import spark_session

    session = spark_session(
        "tests",
        master="local[2]",
        config={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.sql.session.timeZone": "America/St_Johns",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    """An empty log directory."""
    return LogDir.create(str(tmp_path / "log"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Scan]:
    """The scans that are read."""
    asked: list[Scan] = []
    reader = Scan.to_reader
    monkeypatch.setattr(Scan, "to_reader", lambda scan, threads=None: asked.append(scan) or reader(scan, threads))
    return asked


@pytest.fixture
def limits() -> Iterator[Limits]:
    """Makes limits of the package small until the test ends: `limits(MIN_SLICE_BYTES=1)`."""
    with contextlib.ExitStack() as lasting:
        yield lambda **values: lasting.enter_context(small_limits(**values))


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """Storage options of an S3 service on loopback: one for all tests, which use prefixes of their own."""
    with s3_server() as options:
        yield options


@pytest.fixture
def python_environment() -> dict[str, str]:
    """The environment of a process that runs this checkout's code on the Spark beside it, whatever the PATH has."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
