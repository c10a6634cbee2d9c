"""An operator for each job. They run the `segments` command: by spark-submit, or without Spark in a process beside the
task's, so that a job's memory ends with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from spark_segments.airflow.assets import topic_asset
from spark_segments.airflow.reports import report_of, summary
from spark_segments.cli.doctor.paths import Item, path_of
from spark_segments.face.logdir import LogDir
from spark_segments.lineage import datasets

_BESIDE = ("table", "source", "kafka_dir", "bootstrap")
"""What an operator has for the thing that its job works on beside the log directory."""


class SegmentsOperator(BaseOperator):
    """Runs a job over a log directory. Use a subclass: each names its job.

    Without `spark_conn_id` the job works in a process on this worker, by `python` (default: Airflow's own; another
    environment's where Airflow's lacks what a job needs). With it the job is a spark-submit over that connection of the
    provider apache-spark; `spark_submit` are further arguments of its SparkSubmitHook, such as archives, conf,
    properties_file and env_vars. `arguments` are further options of the command, as on the command line.
    `topic`: a name or a pattern, such as orders*, or several; of AppendOperator one name; by default all.
    `storage_options` are seen by who can list processes: credentials belong into the workers' environment.

    Without Spark the result is the job's reports, without a line for each partition: those are in the task's log. A job
    that failed for a partition fails the task, after all other partitions were done: a retry does what is left.
    """

    job: ClassVar[str]
    template_fields: Sequence[str] = ("log_dir", "topic", "arguments", "spark_submit")
    ui_color = "#e8f1f8"

    def __init__(
        self,
        *,
        log_dir: str,
        topic: str | Sequence[str] | None = None,
        arguments: Sequence[str] = (),
        defaults: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        spark_submit: Mapping[str, Any] | None = None,
        python: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.log_dir = log_dir
        self.topic = topic
        self.arguments = list(arguments)
        self.defaults = defaults
        self.storage_options = storage_options
        self.spark_conn_id = spark_conn_id
        self.spark_submit = dict(spark_submit or {})
        self.python = python
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[dict[str, Any]] = []
        self._hook: Any = None

    def positional(self) -> list[str]:
        """The arguments that the command takes by position."""
        return [self.log_dir, *self.topic_words()]

    def topic_words(self, option: str | None = None) -> list[str]:
        """The words of the command that name its topics, each after the option, where they are no arguments."""
        names = [self.topic] if isinstance(self.topic, str) else self.topic or ()
        return [word for name in names if name for word in (option, name) if word is not None]

    def command(self) -> list[str]:
        """The arguments of the `segments` command, without the command's own name."""
        options = [*self.arguments]
        if self.defaults is not None:
            options += ["--defaults", self.defaults]
        for name, value in (self.storage_options or {}).items():
            options += ["--storage", f"{name}={value}"]
        return [*self.positional(), *options, "--output", "json"]

    def execute(self, context: Any) -> list[dict[str, Any]] | None:
        """Runs the job. Raises AirflowException where it fails."""
        if self.spark_conn_id is not None:
            self._submit()
            return None
        return self._run()

    def on_kill(self) -> None:
        """Ends the job. What it has not committed is left for vacuum."""
        if self._process is not None:
            self._process.terminate()
        if self._hook is not None:
            self._hook.on_kill()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The run's datasets, for Airflow's OpenLineage provider. A job on Spark reports its datasets itself."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        beside = next((getattr(self, name) for name in _BESIDE if hasattr(self, name)), "")
        inputs, outputs = datasets(self.job, self.log_dir, beside, self._lines)
        return OperatorLineage(inputs=inputs, outputs=outputs)

    def _run(self) -> list[dict[str, Any]]:
        command = [self.python or sys.executable, "-m", "spark_segments", self.job, *self.command()]
        self.log.info("Running segments %s %s", self.job, " ".join(self.positional()))
        reports = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            self._process = process
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                last = line.rstrip() or last
                self.log.info("%s", line.rstrip())
                report = report_of(line)
                if report is not None:
                    reports.append(summary(report))
                    self._lines += report.get("partitions", ())
        self._process = None
        if process.returncode:
            errors = [f"{one['failed']} partitions failed" for one in reports if one.get("failed")]
            why = "; ".join(errors) or last
            raise AirflowException(f"segments {self.job} ended with {process.returncode}: {why}")
        return reports

    def _submit(self) -> None:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        settings = dict(self.spark_submit)
        application = settings.pop("application", None) or str(path_of(Item.JOB))
        settings.setdefault("name", f"{self.job} {self.log_dir}")
        self._hook = SparkSubmitHook(
            conn_id=self.spark_conn_id, application_args=[self.job, *self.command()], **settings
        )
        self._hook.submit(application)
        self._hook = None


class RollOperator(SegmentsOperator):
    """Seals segments that are due, and merges small chunks: `segments roll`."""

    job = "roll"


class RetainOperator(SegmentsOperator):
    """Takes expired segments out of the log: `segments retain`."""

    job = "retain"


class CompactOperator(SegmentsOperator):
    """Keeps the newest record of every key of compacted topics: `segments compact`."""

    job = "compact"


class VacuumOperator(SegmentsOperator):
    """Deletes files that left the log long ago: `segments vacuum`."""

    job = "vacuum"


class TableOperator(SegmentsOperator):
    """Brings the Delta or Iceberg table beside a topic in step, and makes it where there is none: `segments table`.

    `arguments` such as ["--value-format", "json"] say what a new table is like. The table remembers them.
    """

    job = "table"
    template_fields = (*SegmentsOperator.template_fields, "table")

    def __init__(self, *, topic: str | Sequence[str], table: str, **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        self.table = table

    def positional(self) -> list[str]:
        return [*super().positional(), self.table]


class MaintainOperator(SegmentsOperator):
    """Runs roll, retain, compact and vacuum, one after another: `segments maintain`."""

    job = "maintain"


class _UpdatesTopics(SegmentsOperator):
    """A job that adds records. The topic's asset is its outlet, and the asset's event has the log end offsets.

    Where log directory or topic is a template, or the job is not for a single topic, `outlets` are as given.
    """

    def __init__(self, *, log_dir: str, topic: str | Sequence[str] | None = None, **kwargs: Any) -> None:
        if isinstance(topic, str) and "{{" not in log_dir + topic:
            kwargs.setdefault("outlets", [topic_asset(log_dir, topic)])
        super().__init__(log_dir=log_dir, topic=topic, **kwargs)

    def execute(self, context: Any) -> list[dict[str, Any]] | None:
        """Runs the job, and notes the log end offsets in the events of the outlets that are this topic's asset."""
        reports = super().execute(context)
        if isinstance(self.topic, str):
            asset = topic_asset(self.log_dir, self.topic)
            if asset in self.outlets:
                offsets = LogDir.open(self.log_dir, self.storage_options).topic(self.topic).offsets()
                ends = {str(partition): end for partition, (_, end) in offsets.items()}
                context["outlet_events"][asset].extra = {"log_end_offsets": ends}
        return reports


class AppendOperator(_UpdatesTopics):
    """Appends files to a topic: `segments append`. `inputs` are paths, directories or patterns.

    `once` is an idempotency key, such as "landing/{{ ds }}": a retry, a cleared run and a backfill in any order append
    each key once, as long as the topic remembers it (transactional.id.expiration.ms).
    """

    job = "append"
    template_fields = (*SegmentsOperator.template_fields, "inputs", "once")

    def __init__(self, *, inputs: Sequence[str], once: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inputs = list(inputs)
        self.once = once

    def command(self) -> list[str]:
        once = [] if self.once is None else ["--once", self.once]
        return [*(word for path in self.inputs for word in ("--input", path)), *once, *super().command()]


class ImportOperator(_UpdatesTopics):
    """Copies topics out of a Kafka log directory: `segments import`. A repeat copies what has come since."""

    job = "import"
    template_fields = (*SegmentsOperator.template_fields, "kafka_dir")

    def __init__(self, *, kafka_dir: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_dir = kafka_dir

    def positional(self) -> list[str]:
        return [self.kafka_dir, self.log_dir, *self.topic_words("--topic")]


class ExportOperator(SegmentsOperator):
    """Writes topics as partition directories that a Kafka broker serves: `segments export`."""

    job = "export"
    template_fields = (*SegmentsOperator.template_fields, "kafka_dir")

    def __init__(self, *, kafka_dir: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_dir = kafka_dir

    def positional(self) -> list[str]:
        return [self.log_dir, self.kafka_dir, *self.topic_words("--topic")]


class MirrorOperator(SegmentsOperator):
    """Brings followers in `log_dir` in step with the topics of `source`: `segments mirror --once`.

    `topic` may be a pattern, such as orders*. `source_storage_options`: the storage options of `source`.
    """

    job = "mirror"
    template_fields = (*SegmentsOperator.template_fields, "source")

    def __init__(self, *, source: str, source_storage_options: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.source_storage_options = source_storage_options

    def positional(self) -> list[str]:
        return [self.source, self.log_dir, *self.topic_words("--topic")]

    def command(self) -> list[str]:
        source_options = (self.source_storage_options or {}).items()
        storage = (word for name, value in source_options for word in ("--source-storage", f"{name}={value}"))
        return [*super().command(), "--once", *storage]


class CaptureOperator(SegmentsOperator):
    """Copies topics of a running cluster: `segments capture --once`. A repeat goes on at the log ends here.

    `topic` may be a pattern, such as orders*. Exit code 3 fails the task, though what was captured stays: offsets were
    gone before they were captured.
    """

    job = "capture"
    template_fields = (*SegmentsOperator.template_fields, "bootstrap")

    def __init__(self, *, bootstrap: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bootstrap = bootstrap

    def positional(self) -> list[str]:
        return [self.bootstrap, self.log_dir, *self.topic_words("--topic")]

    def command(self) -> list[str]:
        return [*super().command(), "--once"]


class ReplayOperator(SegmentsOperator):
    """Sends topics to a running cluster: `segments replay`. A repeat sends what was not sent, and nothing twice."""

    job = "replay"
    template_fields = (*SegmentsOperator.template_fields, "bootstrap")

    def __init__(self, *, bootstrap: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bootstrap = bootstrap

    def positional(self) -> list[str]:
        return [self.log_dir, self.bootstrap, *self.topic_words("--topic")]
