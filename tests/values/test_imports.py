"""Optional libraries are asked for where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

_OPTIONAL = ("pyspark", "ptars", "google.protobuf", "grpc_tools", "fastavro", "confluent_kafka", "orjson")
_PROGRAM = """
import sys
for name in {names}:
    sys.modules[name] = None
import pyarrow as pa
import spark_segments.values
from spark_segments import LogDir
log = LogDir.create(sys.argv[1])
log.create_topic("orders")
for name, schema in (("avro", "id bigint"), ("json", "id bigint"), ("csv", "id bigint"), ("connect-json", "id bigint")):
    formats = {{"value.format": name, "value.schema": schema}}
    log.topic("orders").delete_records({{0: -1}})
    log.topic("orders").append(pa.table({{"value": pa.array([{{"id": 7}}])}}), formats=formats)
    (batch,) = log.topic("orders").scan(columns=["value"], formats=formats).batches()
    assert batch.to_pylist() == [{{"value": {{"id": 7}}}}]
"""


@pytest.mark.proof
def test_every_format_but_protobuf_needs_nothing_more(tmp_path):
    program = _PROGRAM.format(names=_OPTIONAL)
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
