"""OpenLineage events of jobs, tables and Spark's writes, where openlineage-python is installed and configured.

A run is a job on a log directory, or an append of Spark to a topic. Its START event comes when it begins; COMPLETE has
its datasets: topics (namespace `segments://…`, the log directory), tables, Kafka directories and topics of clusters.
The facet `segments_offsets` has the offsets that came, where a job says which. FAIL has the error. Spec:
https://openlineage.io/spec/2-0-2/OpenLineage.json, names of datasets: https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset

_log = logging.getLogger(__name__)

PRODUCER = "https://pypi.org/project/spark-segments/"

_SIDES = {
    "append": (None, "topic"),
    "capture": ("kafka", "topic"),
    "export": ("topic", "file"),
    "import": ("file", "topic"),
    "mirror": ("leader", "topic"),
    "promote": ("leader", "topic"),
    "replay": ("topic", "kafka"),
    "table": ("topic", "file"),
    "verify": ("topic", None),
}
"""{job: (kind of its inputs, kind of its outputs)}. All other jobs read topics and rewrite them."""

_SUMS = ("records_in", "bytes_in", "records_out", "bytes_out")
_OTHERS = ("leader", "servers", "table_uri", "source", "target")
"""Arguments that name what a job works on beside the log directory."""


def datasets(
    job: str, log_dir: str, other: str, lines: Iterable[Mapping[str, Any]]
) -> tuple[list[InputDataset], list[OutputDataset]]:
    """The datasets of a job, from the lines of its report. `other`: the table, the leader's log directory, the Kafka
    directory or the servers of the cluster that it works on beside the log directory.
    """
    from openlineage.client import event_v2, facet_v2

    read = facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet
    written = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        topics.setdefault(line["topic"], []).append(line)
    inputs = []
    outputs = []
    input_kind, output_kind = _SIDES.get(job, ("topic", "topic"))
    for topic, its in sorted(topics.items()):
        sums = [sum(line.get(name, 0) for line in its) for name in _SUMS]
        ranges = [{name: line[name] for name in ("partition", "start", "end")} for line in its if "end" in line]
        offsets = facet_v2.DatasetFacet().with_additional_properties(partitions=ranges)
        came: dict[str, Any] = {"segments_offsets": offsets} if ranges else {}
        if input_kind is not None:
            name = _named(input_kind, topic, log_dir, _former_leader(its) or other)
            inputs.append(event_v2.InputDataset(*name, {"inputStatistics": read(*sums[:2])}, facets={**came}))
        if output_kind is not None:
            name = _named(output_kind, topic, log_dir, other)
            outputs.append(event_v2.OutputDataset(*name, {"outputStatistics": written(*sums[2:])}, facets={**came}))
    return inputs, outputs


def _former_leader(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """The log directory that a promotion's lines name: its caller need not."""
    return next((line["former_uri"] for line in lines if line.get("former_uri")), None)


def _named(kind: str, topic: str, log_dir: str, other: str) -> tuple[str, str]:
    """(namespace, name) of a dataset"""
    if kind == "kafka":
        return f"kafka://{other.partition(',')[0]}", topic
    parts = urlsplit(log_dir if kind == "topic" else other.replace("{topic}", topic))
    path = (parts.path if parts.netloc else os.path.abspath(parts.path)).rstrip("/")
    if kind != "file":
        return f"segments://{parts.netloc}{path}", topic
    return (f"{parts.scheme}://{parts.netloc}", path.lstrip("/")) if parts.netloc else ("file", path)


def observe(job: str, arguments: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Begins a run: see `extensions`. None where OpenLineage is not installed, not configured, or does not answer."""
    with _as_warnings(job):
        return _begun(job, arguments)
    return None


@contextlib.contextmanager
def _as_warnings(job: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of a configuration or of any transport. What the job does counts
        _log.warning("No lineage of %s: %s", job, error)


def _begun(job: str, arguments: Mapping[str, Any]) -> Callable[[Any], None] | None:
    client = _client()
    if client is None:
        return None
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, parent_run
    from openlineage.client.uuid import generate_new_uuid

    log_dir = _place(arguments["log"])
    beside = next((_place(arguments[name]) for name in _OTHERS if name in arguments), "")
    topic = arguments.get("topic")
    names = [job, _named("topic", "", log_dir, "")[0]]
    if isinstance(topic, str):
        names.append(topic)
    its_job = Job(os.environ.get("OPENLINEAGE_NAMESPACE", "default"), " ".join(names))
    run = Run(str(generate_new_uuid()))
    parent = os.environ.get("OPENLINEAGE_PARENT_ID", "").split("/")
    if len(parent) == 3:  # as the integrations of others
        namespace, name, run_id = parent
        facet = parent_run.ParentRunFacet(parent_run.Run(run_id), parent_run.Job(namespace, name))
        run.facets = {"parent": facet}

    def emit(state: RunState, inputs: Any = (), outputs: Any = ()) -> None:
        now = datetime.now(UTC).isoformat()
        sides = {"inputs": list(inputs), "outputs": list(outputs)}
        client.emit(RunEvent(eventTime=now, producer=PRODUCER, run=run, job=its_job, eventType=state, **sides))

    def end(result: Any) -> None:
        with _as_warnings(job), contextlib.closing(client):
            if isinstance(result, BaseException):
                why = error_message_run.ErrorMessageRunFacet(str(result), "PYTHON")
                run.facets = {**(run.facets or {}), "errorMessage": why}
                return emit(RunState.FAIL)
            lines = getattr(result, "partitions", None)
            if lines is None:  # {partition: (first, last offset)} of what was appended
                lines = [
                    {"topic": topic, "partition": at, "start": start, "end": last + 1, "records_out": last + 1 - start}
                    for at, (start, last) in result.items()
                ]
            return emit(RunState.COMPLETE, *datasets(job, log_dir, beside, lines))

    emit(RunState.START)
    return end


def _place(place: Any) -> str:
    return place if isinstance(place, str) else str(getattr(place, "uri", None) or place.storage.uri)


def _client() -> OpenLineageClient | None:
    files = (Path("openlineage.yml"), Path.home() / ".openlineage" / "openlineage.yml")
    if not any(name.startswith("OPENLINEAGE_") for name in os.environ) and not any(path.is_file() for path in files):
        return None
    from openlineage.client import OpenLineageClient

    return OpenLineageClient()
