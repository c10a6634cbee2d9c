"""What --metrics writes, read back by Prometheus' own parser."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from spark_segments import LogDir
from spark_segments.cli.metrics import gauge, openmetrics_text
from tests.maintenance.upkeep import busy_log
from verification.world.group_readers import moved
from verification.world.kafka_bytes.golden_files import GOLDEN


def samples(path: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels without the log directory) -> value. Raises where the text is no OpenMetrics."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = {name: text for name, text in sample.labels.items() if name not in ("log_dir", "logDirectory")}
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def test_maintain_writes_the_figures_of_all_jobs_and_of_the_log(segments, log, tmp_path):
    busy_log(log)
    path = tmp_path / "log.prom"
    ran = segments("maintain", log.uri, "--metrics", path, "--output", "json")
    reports = {report["job"]: report for report in map(json.loads, ran.lines)}
    found = samples(path)

    for job, report in reports.items():
        assert found["segments_job_input_records", (("job", job),)] == report["records_in"]
        assert found["segments_job_output_bytes", (("job", job),)] == report["bytes_out"]
        assert found["segments_job_failed_partitions", (("job", job),)] == 0
        for reason, count in report["dropped"].items():
            assert found["segments_job_dropped_records", (("job", job), ("reason", reason))] == count > 0
    compacted = reports["compact"]
    recopied = 100 * compacted["bytes_out"] / compacted["bytes_in"]
    assert found["kafka_log_logcleaner_cleaner_recopy_percent", ()] == pytest.approx(recopied)
    for topic in log.topics():
        for number, (start, end) in log.topic(topic).offsets().items():
            labels = (("partition", str(number)), ("topic", topic))
            assert (found["kafka_log_log_logstartoffset", labels], found["kafka_log_log_logendoffset", labels]) == (
                start,
                end,
            )
            size = sum(segment.log_bytes for segment in log.topic(topic).snapshot.live_of(number))
            assert found["kafka_log_log_size", labels] == size > 0
    [line] = log.topic("latest").describe()["partitions"]
    assert found["kafka_log_logcleanermanager_max_dirty_percent", ()] == pytest.approx(100 * line["dirty_ratio"])
    assert found["segments_topic_removed_bytes", (("topic", "orders"),)] > 0


@pytest.mark.proof
def test_a_single_job_and_describe_share_no_metric(segments, log, tmp_path):
    """A collector that finds a metric of the same labels in two files refuses both."""
    busy_log(log)
    names = []
    for command in ("roll", "compact", "vacuum", "describe"):
        segments(command, log.uri, "--metrics", tmp_path / f"{command}.prom")
        names += samples(tmp_path / f"{command}.prom")
    assert len(names) == len(set(names)) > 30


@pytest.mark.proof
def test_node_exporters_older_format_reads_the_same(segments, log, tmp_path):
    busy_log(log)
    segments("maintain", log.uri, "--metrics", tmp_path / "log.prom")
    text = (tmp_path / "log.prom").read_text()
    older, newer = (
        {(one.name, *sorted(one.labels.items())): one.value for family in parse(text) for one in family.samples}
        for parse in (prometheus_families, text_string_to_metric_families)
    )
    assert older == newer != {}


@pytest.mark.proof
def test_the_file_is_replaced_in_one_step_and_others_may_read_it(segments, log, tmp_path):
    busy_log(log)
    path = tmp_path / "log.prom"
    segments("roll", log.uri, "--metrics", path)
    with path.open() as before:
        segments("compact", log.uri, "--metrics", path)
        assert 'job="roll"' in before.read() and 'job="compact"' in path.read_text()
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["log.prom"]


def test_a_dry_run_has_no_metrics(run, log, tmp_path):
    ran = run("roll", log.uri, "--dry-run", "--metrics", tmp_path / "log.prom")
    assert ran.code == 1 and "A dry run has no metrics" in ran.error and not (tmp_path / "log.prom").exists()


def test_any_text_in_a_label_comes_back():
    text = 'a "quoted" \\ back\nslash'
    written = openmetrics_text([gauge("a_bytes", "bytes", text, [({"b": text}, 1.5)])])
    [read] = text_string_to_metric_families(written)
    [sample] = read.samples
    assert (read.documentation, read.unit, sample.labels, sample.value) == (text, "bytes", {"b": text}, 1.5)


def test_the_lag_of_a_group_has_kafka_exporters_name(segments, log, tmp_path):
    busy_log(log)
    moved(log, "billing", {"orders": {0: 30, 1: 40}})
    segments("describe", log.uri, "--metrics", tmp_path / "log.prom")
    found = samples(tmp_path / "log.prom")
    labels = [(("consumergroup", "billing"), ("partition", number), ("topic", "orders")) for number in "01"]
    assert [found["kafka_consumergroup_lag", one] for one in labels] == [10, 0]
    assert [found["kafka_consumergroup_current_offset", one] for one in labels] == [30, 40]


def test_an_import_and_an_export_say_what_they_copied(segments, tmp_path):
    segments("import", GOLDEN / "broker-data", tmp_path / "log", "--topic", "orders", "--metrics", tmp_path / "i.prom")
    segments("export", tmp_path / "log", tmp_path / "kafka", "--metrics", tmp_path / "e.prom")
    log = LogDir.open(str(tmp_path / "log"))
    records = sum(one["records"] for one in log.topic("orders").describe()["partitions"])
    assert records > 0
    for job, file in (("import", "i.prom"), ("export", "e.prom")):
        found = samples(tmp_path / file)
        assert found["segments_job_copied_records", (("job", job), ("topic", "orders"))] == records
        assert found["segments_job_copied_bytes", (("job", job), ("topic", "orders"))] > 0
