"""The examples run as their pages say, from an empty directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_segments import LogDir
from spark_segments.cli import COMMANDS
from spark_segments.maintenance import roll, verify
from tests.conftest import ROOT
from tests.maintenance.upkeep import all_records, assert_compacted, assert_maintained, assert_vacuumed, busy_log
from verification.kafka_protocol.broker import running_broker
from verification.kafka_protocol.fetching import fetched_batches, kept_batches
from verification.world.stores.s3_server import BUCKET

AIRFLOW_PYTHON = Path(os.environ.get("AIRFLOW_ENVIRONMENT", ROOT / ".venv-airflow")) / "bin" / "python"


@pytest.fixture
def run(tmp_path, python_environment):
    """Runs an example; what it printed."""

    def run(example: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / example), *arguments],
            cwd=tmp_path,
            env=python_environment | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout

    return run


@pytest.fixture
def run_here(spark, tmp_path, monkeypatch, capsys):
    """Runs an example in this process, on the tests' session, which it takes for its own; what it printed."""

    def run(example: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [example, *arguments])
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_the_quickstart_leaves_the_log_that_it_speaks_of(run_here, tmp_path):
    uri = str(tmp_path / "log")
    printed = run_here("quickstart.py", uri)
    assert sum(end for _, end in LogDir.open(uri).topic("orders").offsets().values()) == 100_000
    kafka = LogDir.open(str(ROOT / "tests" / "golden" / "broker-data"))
    records = sum(batch.num_rows for batch in kafka.topic("orders").scan().batches())
    assert f"{records:,} records, CRC of every batch checked" in printed


@pytest.mark.proof
def test_the_notebook_shows_tables_bars_and_two_plots(tmp_path, python_environment):
    """As in a kernel, and without ipywidgets, which DuckDB's own bar would need."""
    notebook = ROOT / "examples" / "notebook.ipynb"
    command = [sys.executable, "-m", "verification.release.notebook", str(notebook)]
    environment = python_environment | {"MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads(done.stdout.splitlines()[-1])
    last = [cell[-1] for cell in cells]
    tables = [shown["text/html"] for shown in last if "<table" in shown.get("text/html", "")]
    for title, facts in (
        ("LogDir", ["<th>bytes</th>", "<td>2,310</td>", " KiB</td>"]),
        ("Topic", ["<th>log end</th>", "<td>1,155</td>"]),
        ("Group", ["<th>lag</th>", "<td>255</td>"]),
        ("LogDir", ["<th>largest lag</th>", "<td>410</td>"]),
        ("Report", ["<td>roll</td>"]),
        ("Result", ["<td>customer-6</td><td>324</td>"]),
    ):
        assert any(f"<b>{title}</b>" in table and all(fact in table for fact in facts) for table in tables), title
    bars = [html for cell in cells for shown in cell if "<progress" in (html := shown.get("text/html", ""))]
    assert 'value="3" max="3"' in bars[-1] and "3 of 3" in bars[-1]
    assert [shown["text/plain"] for shown in last].count("[460, 460, 460, 460]") == 1  # versions and times, two engines
    assert sum("image/png" in shown for cell in cells for shown in cell) == 2


@pytest.mark.spark
@pytest.mark.proof
def test_the_program_on_sail_compacts_and_merges(run, tmp_path):
    printed = run("sail.py", str(tmp_path / "log"))
    assert "1,000 customers in the table" in printed
    compacted = re.search(r"compact: ([0-9,]+) records in, ([0-9,]+) out", printed)
    assert compacted is not None
    before, after = (int(number.replace(",", "")) for number in compacted.groups())
    assert 500_000 < before <= 1_000_000 and after < before / 10
    assert sum(end for _, end in LogDir.open(str(tmp_path / "log")).topic("orders").offsets().values()) == 1_000_000


@pytest.mark.spark
@pytest.mark.proof
def test_a_standalone_cluster_appends_maintains_and_captures(run, tmp_path):
    environment = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}  # twelve JVMs, each for seconds
    with running_broker(tmp_path / "broker") as address:
        admin, producer = (kind({"bootstrap.servers": address}) for kind in (AdminClient, Producer))
        admin.create_topics([NewTopic("payments", 3)])["payments"].result(20)
        for number in range(3000):
            producer.produce("payments", f"{number}", partition=number % 3)
        producer.flush(30)
        jobs = ["append", "maintain", f"capture={address}"]
        printed = run("cluster/run.py", str(tmp_path / "log"), *jobs, environment=environment)
        there = [fetched_batches(address, "payments", number) for number in range(3)]
    reports = {report["job"]: report for report in map(json.loads, printed.splitlines())}
    assert list(reports) == ["append", "roll", "retain", "compact", "vacuum", "capture"]
    assert sum(line["last_offset"] - line["first_offset"] + 1 for line in reports["append"]["partitions"]) == 20_000
    log = LogDir.open(str(tmp_path / "log"))
    assert [kept_batches(log, "payments", number) for number in range(3)] == there and all(there)
    left = all_records(log)["orders"]
    dropped = {reason: count for report in reports.values() for reason, count in report.get("dropped", {}).items()}
    assert dropped.keys() == {"retention.bytes", "superseded"} and sum(dropped.values()) == 20_000 - len(left)
    assert {record["key"] for record in left} == {b"customer-%d" % number for number in range(100)}


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where Airflow keeps its database: to make one takes longer than to run a DAG."""
    return str(tmp_path_factory.mktemp("airflow"))


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.xdist_group("airflow")  # one after the other: the first makes the environment
def test_airflow_runs_the_dag(run, airflow_home, log, tmp_path):
    before = all_records(busy_log(log))
    defaults = tmp_path / "defaults.properties"
    defaults.write_text("log.retention.check.interval.ms=3600000\nlog.segment.delete.delay.ms=0\n")
    environment = {"SEGMENTS_DEFAULTS": str(defaults), "AIRFLOW_HOME": airflow_home, "SEGMENTS_SPARK_CONNECTION": ""}
    printed = run("airflow/run.py", log.uri, environment=environment)
    found = re.findall(r'(\{"job": .*\}) +\[airflow', printed)  # a task's output, among Airflow's lines
    reports = {report["job"]: report for report in map(json.loads, found)}
    assert list(reports) in (["roll", *both, "vacuum"] for both in (["retain", "compact"], ["compact", "retain"]))
    assert_maintained(log, [reports[job] for job in ("roll", "retain", "compact", "vacuum")], before)
    assert_vacuumed(log)


@pytest.fixture
def archive(tmp_path: Path, airflow_home: str, python_environment) -> dict[str, str]:
    """What the DAGs of an archive take: golden-data's topic orders goes to tmp_path / "archive"."""
    return python_environment | {
        "AIRFLOW_HOME": airflow_home,
        "SEGMENTS_KAFKA_DIRECTORY": str(ROOT / "tests" / "golden" / "broker-data"),
        "SEGMENTS_ARCHIVE": str(tmp_path / "archive"),
        "SEGMENTS_EXPORT": str(tmp_path / "export"),
    }


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.xdist_group("airflow")  # one after the other: the first makes the environment
def test_airflow_imports_a_topic_waits_for_it_and_exports_it(run, archive, tmp_path):
    """Without Spark. The sensor defers, and goes on when the record that it waits for is appended."""
    run("airflow/run.py", "--dag", "spark_segments_import", environment=archive)
    log = LogDir.open(archive["SEGMENTS_ARCHIVE"])
    ends = {number: end for number, (_, end) in log.topic("orders").offsets().items()}
    with contextlib.closing(sqlite3.connect(Path(archive["AIRFLOW_HOME"]) / "airflow.db")) as database:
        events = database.execute(
            "SELECT asset.uri, asset_event.extra FROM asset_event JOIN asset ON asset.id = asset_event.asset_id"
        ).fetchall()
    uri = f"{Path(log.uri).as_uri()}/orders"
    assert [(found, json.loads(extra)) for found, extra in events] == [
        (uri, {"log_end_offsets": {str(number): end for number, end in ends.items()}})
    ]

    command = [sys.executable, str(ROOT / "examples" / "airflow" / "run.py"), "--dag", "spark_segments_export"]
    wanted = archive | {"SEGMENTS_END_OFFSETS": json.dumps({"0": ends[0] + 1})}
    with subprocess.Popen(
        command, env=wanted, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as exporting:
        printed = ""
        for line in exporting.stdout:
            printed += line
            if "running trigger in line" in line:
                assert not (tmp_path / "export").exists()
                log.topic("orders").append(
                    pa.table({"value": [b"the last one"], "partition": pa.array([0], pa.int32())})
                )
    assert exporting.returncode == 0 and "running trigger in line" in printed, printed[-5000:]
    assert all_records(LogDir.open(str(tmp_path / "export")))["orders"] == all_records(log)["orders"]


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.xdist_group("airflow")  # one after the other: the first makes the environment
def test_every_operator_of_airflow_gives_its_job_what_the_command_takes(run, archive):
    """Airflow knows the provider, and each command line passes the command's own parser."""
    run("airflow/run.py", "--dag", environment=archive)
    script = """
import json
from airflow.providers_manager import ProvidersManager
from spark_segments.airflow import operators
assert "spark-segments" in ProvidersManager().providers
further = {"append": {"topic": "t", "inputs": ["a", "b"]}, "import": {"kafka_dir": "k", "topic": "t"},
           "export": {"kafka_dir": "k", "topic": "t"}, "mirror": {"source": "/s"},
           "table": {"topic": "t", "table": "/b"}, "capture": {"bootstrap": "b:1", "topic": "t*"},
           "replay": {"bootstrap": "b:1", "topic": "t"}}
found = [one for one in vars(operators).values() if isinstance(one, type) and hasattr(one, "job")]
made = [one(task_id="t", log_dir="/l", storage_options={"A": "b"}, **further.get(one.job, {})) for one in found]
for one in made:
    one._lines.append({"topic": "t"})
lineage = {one.job: one.get_openlineage_facets_on_complete(None) for one in made}
named = {job: [[dataset.name for dataset in side] for side in (of.inputs, of.outputs)] for job, of in lineage.items()}
print("COMMANDS", json.dumps([{one.job: one.command() for one in made}, named]))
"""
    done = subprocess.run([AIRFLOW_PYTHON, "-c", script], env=archive, capture_output=True, text=True, check=True)
    commands, lineage = json.loads(done.stdout.partition("COMMANDS")[2])
    assert lineage["table"] == [["t"], ["/b"]] and lineage["append"] == [[], ["t"]] and lineage["import"][1] == ["t"]
    jobs = {"roll", "retain", "compact", "vacuum", "maintain", "append", "import", "export", "mirror", "table"}
    assert jobs | {"capture", "replay"} == {*commands}
    known = {command.name: command for command in COMMANDS}
    parsed = {job: known[job].load().make_context(job, arguments).params for job, arguments in commands.items()}
    assert {(params["log_dir"], *params["storage"]) for params in parsed.values()} == {("/l", "A=b")}
    assert [*parsed["append"]["paths"]] == ["a", "b"] and parsed["import"]["kafka_dir"] == "k"
    assert [*parsed["append"]["topic"], *parsed["import"]["topic"], *parsed["export"]["topic"]] == ["t"] * 3
    assert parsed["capture"]["once"] and {parsed[job]["bootstrap"] for job in ("capture", "replay")} == {"b:1"}


_APPENDS = """
import collections, json, sys, types
from concurrent.futures import ThreadPoolExecutor
from airflow.sdk.exceptions import AirflowException
from spark_segments.airflow import operators
log_dir, landing, python = sys.argv[1:]
given = {"task_id": "t", "log_dir": log_dir, "python": python}
def append(day, topic="orders"):
    operator = operators.AppendOperator(topic=topic, inputs=[f"{landing}/{day}"], once=f"landing/{day}", **given)
    [report] = operator.execute({"outlet_events": collections.defaultdict(types.SimpleNamespace)})
    return report["repeated"]
def refused(operator):
    try:
        operator.execute({})
    except AirflowException as error:
        return "Invalid topic name" in str(error)
backfill = [append(day) for day in (2, 1, 2)]
with ThreadPoolExecutor() as pool:
    at_once = sorted(pool.map(append, (3, 3)))
paths = [refused(job(topic="./orders", **given)) for job in (operators.MaintainOperator, operators.VacuumOperator)]
paths.append(refused(operators.AppendOperator(topic="./orders", inputs=[f"{landing}/1"], **given)))
print("FOUND", json.dumps([backfill, at_once, paths]))
"""


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.xdist_group("airflow")
def test_airflow_appends_each_day_once_in_any_order_and_to_no_topic_by_another_path(run, archive, log, tmp_path):
    """A backfill, a cleared run, and two runs of a day at once."""
    run("airflow/run.py", "--dag", environment=archive)
    log.create_topic("orders")
    for day in (1, 2, 3):
        (tmp_path / str(day)).write_text(f"day {day}\n")
    command = [AIRFLOW_PYTHON, "-c", _APPENDS, log.uri, tmp_path, sys.executable]
    done = subprocess.run(command, env=archive, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert json.loads(done.stdout.partition("FOUND")[2]) == [[False, False, True], [False, True], [True] * 3]
    assert [record["value"] for record in all_records(log)["orders"]] == [b"day 2", b"day 1", b"day 3"]
    assert log.topics() == ["orders"] and verify(log, deep=True).findings == []


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.xdist_group("airflow")  # one after the other: the first makes the environment
def test_a_deferred_sensor_keeps_the_name_of_a_connection_and_no_storage_options(run, archive, s3_options, tmp_path):
    run("airflow/run.py", "--dag", environment=archive)
    log = LogDir.create(f"s3://{BUCKET}/{tmp_path.name}", s3_options)
    log.create_topic("orders")
    script = """
import asyncio, json, sys
from airflow.sdk.exceptions import TaskDeferred
from spark_segments.airflow.sensors import TopicSensor, TopicTrigger
from spark_segments.errors import InvalidOptionError
given = {"task_id": "t", "log_dir": sys.argv[1], "topic": "orders"}
try:
    TopicSensor(**given, end_offsets={0: 1}, deferrable=True, storage_options={"AWS_SECRET_ACCESS_KEY": "secret"})
except InvalidOptionError:
    print("REFUSED")
sensor = TopicSensor(**given, end_offsets={0: 1}, deferrable=True, storage_conn_id="store")
try:
    sensor.execute({})
except TaskDeferred as deferred:
    stored = json.dumps(deferred.trigger.serialize()[1])
print("STORED", stored)
again = json.loads(stored)
again["condition"]["end_offsets"] = {"0": 0}
print("EVENT", asyncio.run(anext(TopicTrigger(**again).run())).payload)
"""
    environment = archive | {"AIRFLOW_CONN_STORE": json.dumps({"conn_type": "generic", "extra": {**s3_options}})}
    command = [AIRFLOW_PYTHON, "-c", script, log.uri]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert "REFUSED" in done.stdout and "EVENT {'offsets': {'0': 0}}" in done.stdout
    stored = json.loads(done.stdout.partition("STORED")[2].splitlines()[0])
    assert stored["storage_conn_id"] == "store" and not {*s3_options} & {*stored["condition"]}


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.xdist_group("airflow")
def test_a_task_of_the_dag_is_a_spark_submit_where_there_is_a_connection(run, archive, log):
    """The four tasks differ in the job alone. `python examples/airflow/run.py LOG_DIR` runs all of them so."""
    before = all_records(busy_log(log))
    roll(log)
    run("airflow/run.py", "--dag", environment=archive)
    variables = runpy.run_path(str(ROOT / "examples" / "airflow" / "run.py"))["variables"]
    script = """
import logging, sys
sys.path.insert(0, sys.argv[1])
import spark_segments_upkeep
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
dag = spark_segments_upkeep.spark_segments_upkeep()
tasks = [dag.get_task(f"log.{job}") for job in ("roll", "retain", "compact", "vacuum")]
assert [task.spark_conn_id for task in tasks] == ["spark_segments"] * 4
dag.get_task("log.compact").execute({})
"""
    command = [AIRFLOW_PYTHON, "-c", script, str(ROOT / "examples" / "airflow" / "dags")]
    environment = archive | variables({"log": log.uri})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    [report] = map(json.loads, re.findall(r'\{"job": .*\}', done.stdout))
    assert_compacted(log, report, before["latest"])


@pytest.mark.proof
def test_a_topic_is_archived_and_replayed_by_formats_and_options_alone(run_here, tmp_path):
    """What a broker wrote, into a log directory and on into another: every record, in its place."""
    kafka = ROOT / "tests" / "golden" / "broker-data"
    archive, replay = (LogDir.create(str(tmp_path / name)) for name in ("archive", "replay"))
    for log in (archive, replay):
        log.create_topic("orders", partitions=2, config={"retention.ms": "-1"})
    run_here("move_topic.py", "--from", "segments", f"path={kafka}", "subscribe=orders", "--to", "segments",
        f"path={archive.uri}", "topic=orders")  # fmt: skip
    run_here("move_topic.py", "--from", "segments", f"path={archive.uri}", "subscribe=orders", "--to", "segments",
        f"path={replay.uri}", "topic=orders")  # fmt: skip
    columns = ["partition", "key", "value", "headers", "timestamp"]
    records = [
        [row for batch in log.topic("orders").scan(columns=columns).batches() for row in batch.to_pylist()]
        for log in (LogDir.open(str(kafka)), archive, replay)
    ]
    assert records[0] == records[1] == records[2] != []


def test_a_move_without_kafkas_package_says_which_it_takes(run_here, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        run_here("move_topic.py", "--from", "kafka", "subscribe=a", "--to", "segments", f"path={tmp_path}", "topic=a")
    assert "Kafka's connector is a package" in capsys.readouterr().err


@pytest.mark.proof
def test_a_changelog_becomes_a_table(run_here, tmp_path):
    for flags in ([], ["--spark"]):
        directory = tmp_path / str(len(flags))
        printed = run_here(
            "changelog_to_table.py", str(directory / "log"), str(directory / "table"), "--rounds", "3", *flags
        )
        expected = [
            row["value"]
            for batch in LogDir.open(str(directory / "log"))
            .topic("accounts")
            .scan(columns=["value"], view="latest", include_tombstones=False)
            .batches()
            for row in batch.to_pylist()
        ]
        assert f"{{'accounts': {len(expected)}, 'total': {sum(map(int, expected))}}}" in printed
