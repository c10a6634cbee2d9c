"""The public function: a verification, compared with a list or followed by a signed list of what it has read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.extensions import observed_job
from spark_segments.log import LogDirectory, Report
from spark_segments.maintenance.verification.verify import Verification
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.signed_lists.checksum_list import ChecksumList
    from spark_segments.signed_lists.signature import Signing


@observed_job("verify")
def verify(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    deep: bool = False,
    repair: bool = False,
    cut: bool = False,
    against: Path | ChecksumList | None = None,
    sign: Signing | None = None,
) -> Report:
    """Verifies the topics that are selected, or all, in this process or, where there is a session, on Spark.

    Faults of the log are the report's `findings`, never errors. A topic has a line, with what was read of it as
    `bytes_in`. `details`: deep, partitions, segments; findings_left_out, of which there were MOST_OF_A_KIND already;
    uncorrected, the findings that no repair has corrected; holes, the known holes that the topics have recorded, which
    are no findings; lost, the offsets of damaged batches, which cannot be read.

    `repair` first rebuilds the manifests of `topics` that are lost or damaged, each of which is in `details` as
    "rebuilt" with what a rebuild says (restore.md): where commits may be lost, the topic gets a new id. It checks
    deeply, then rebuilds the wrong sidecars under new names, in a single commit for each topic; each has a line, with
    its `new_path`. The findings stay in the report. With `cut` it takes damaged batches out of the log, too: their
    offsets become holes of the topic, and all other records stay.

    `against`: a list of checksums that the files are compared with, too; `details` has what became of them as
    "listed". `sign`: a deep look that finds nothing writes a signed list of what it has read, which `details` names as
    "signed". Raises UnknownTopicError for an unknown name of `topics`, LogDirError for a repair of a directory that
    Kafka wrote, NotLeaderError for that of a follower.

    `progress` is called with (topics done, all topics), and of a deep look with (bytes read, bytes to read), which
    begin again with each topic, and with each part of a large one.
    """
    verification = Verification(
        log, topics, spark, progress, dry_run, deep=deep, repair=repair, cut=cut, keeps_snapshots=sign is not None
    )
    if sign is not None:
        _check_signing(verification, sign)
    listed = None if against is None else _list_of(against)
    verification.run()
    report = verification.report
    if listed is not None:
        _compare(verification, listed)
    if sign is not None and not report.findings:
        report.details["signed"] = sign.write(log.storage, verification.snapshots, verification.began_ms, spark)
    return report.finish()


def _check_signing(verification: Verification, sign: Signing) -> None:
    """A signature says of a managed log that all of it was read and is unchanged."""
    if verification.repair or not verification.deep:
        raise InvalidOptionError(
            "What is signed was read whole, and is not changed", expected="deep, without a repair", found="sign"
        )
    if verification.log.is_kafka:
        raise LogDirError(
            "Nothing of a broker's own directory is signed", path=verification.log.uri, hint="Import it first"
        )
    sign.check()


def _list_of(against: Path | ChecksumList) -> ChecksumList:
    from spark_segments.signed_lists.checksum_list import ChecksumList

    return ChecksumList.read(against) if isinstance(against, Path) else against


def _compare(verification: Verification, listed: ChecksumList) -> None:
    """Adds what differs from the list to the report."""
    from spark_segments.signed_lists.comparison import compare

    comparison = compare(verification.log, listed, verification.topics, verification.spark)
    verification.report.details["listed"] = comparison.files.to_dict()
    verification.report.bytes_in += comparison.bytes_read
    for findings in comparison.findings:
        verification.add(findings)
