"""Verification on Spark finds what it finds in one process."""

from __future__ import annotations

from spark_segments.maintenance import verify
from verification.world.kafka_bytes.golden_files import golden_dir


def test_spark_finds_the_same_faults_as_one_process(spark, log):
    log.import_kafka(str(golden_dir("txn-0")))
    log.import_kafka(str(golden_dir("bigcompact-zstd/clean-1/bigcompact-0")), config={"cleanup.policy": "compact"})
    assert verify(log, deep=True, spark=spark).ok
    row = log.topic("txn").snapshot.live_of(0)[1]
    damaged = bytearray(log.storage.read(row.path).to_pybytes())
    damaged[5000] ^= 1
    log.storage.delete([row.path, row.index_path])
    log.storage.write(row.path, bytes(damaged))
    report = verify(log, deep=True, spark=spark)
    assert {finding.path for finding in report.findings} == {row.path, row.index_path}
    assert report.findings == verify(log, deep=True).findings
