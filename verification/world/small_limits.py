"""Limits of the package made small: what takes gigabytes, thousands of files or minutes to reach otherwise.

No other constant of the package is changed by a test.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Protocol
from unittest import mock

_WINDOWS = ("format.walk", "log.segment.file", "maintenance.compaction.second_pass", "difference")
_ROWS = "log.manifest.files.row_files"
_SECOND_PASS = "maintenance.compaction.second_pass"
_VACUUM = "maintenance.removal.vacuum"

LIMITS: dict[str, tuple[str, ...]] = {
    # Reading
    "WINDOW_BYTES": tuple(f"{module}.WINDOW_BYTES" for module in _WINDOWS),
    "FIRST_WINDOW_BYTES": ("log.segment.file.FIRST_WINDOW_BYTES",),
    "PIECE_BYTES": ("log.reading.read.PIECE_BYTES",),
    "BLOCK_BYTES": ("storage.fetch.BLOCK_BYTES",),
    "SMALL_RUN_BYTES": ("log.segment.file.SMALL_RUN_BYTES",),
    "STAND_IN_INTERVAL_BYTES": ("kafka.segment_scan.STAND_IN_INTERVAL_BYTES",),
    "DUMP_WINDOW_BYTES": ("dump.log_file.WINDOW_BYTES",),
    "DUMP_GROUP_BYTES": ("dump.log_file.GROUP_BYTES",),
    "MOST_COMPLAINTS": ("dump.entry.MOST_COMPLAINTS",),
    "INPUT_BLOCK_BYTES": ("cli.records.input_files.BLOCK_BYTES",),
    "CSV_HEAD_BYTES": ("cli.records.csv_rows.CSV_HEAD_BYTES",),
    "PARTITIONS_BESIDE_A_TABLE": ("cli.page.serve.PARTITIONS_BESIDE_A_TABLE",),
    # Writing
    "WAITING_BYTES": ("log.appending.appender.WAITING_BYTES",),
    "MAX_OPEN_CHUNKS": ("log.appending.appender.MAX_OPEN_CHUNKS",),
    "FEWEST_RUNS": ("log.appending.appender.FEWEST_RUNS", "maintenance.rolling.copies.FEWEST_RUNS"),
    "MANY_CHUNKS": ("spark.row_writer.MANY_CHUNKS",),
    "LARGE_BATCH_BYTES": ("spark.batches.LARGE_BATCH_BYTES",),
    "IMPORT_WAVE_BYTES": ("kafka.importing.WAVE_BYTES",),
    "READ_BYTES": ("signed_lists.file_checksum.READ_BYTES",),
    # The manifest
    "MERGE_VERSIONS": ("log.manifest.manifest.MERGE_VERSIONS",),
    "CHECKPOINT_VERSIONS": ("log.manifest.manifest.CHECKPOINT_VERSIONS",),
    "SEGMENT_ROWS_A_FILE": (f"{_ROWS}.ROWS_A_FILE:segment",),
    "TRANSACTION_ROWS_A_FILE": (f"{_ROWS}.ROWS_A_FILE:transaction",),
    "COMMIT_LOG_MS": ("log.manifest.commit.upkeep.COMMIT_LOG_MS",),
    "FORMAT_VERSION": ("log.manifest.schemas.FORMAT_VERSION", "log.manifest.topic_row.FORMAT_VERSION"),
    "MOST_ERASURES": ("log.manifest.state.states.MOST_ERASURES",),
    "NAMED_TOPICS": ("log.directory.NAMED_TOPICS",),
    # Jobs
    "MIN_SLICE_BYTES": ("maintenance.compaction.round_tasks.MIN_SLICE_BYTES",),
    "LARGE_PARTITION_BYTES": ("maintenance.compaction.compaction_plan.LARGE_PARTITION_BYTES",),
    "LARGE_SHARE": ("maintenance.compaction.compaction_plan.LARGE_SHARE",),
    "LARGEST_FILE_BYTES": ("maintenance.compaction.group_rewrite.LARGEST_FILE_BYTES",),
    "WINDOWS_WAITING_BYTES": (f"{_SECOND_PASS}.WAITING_BYTES",),
    "LEAST_GAP_BYTES": (f"{_SECOND_PASS}.LEAST_GAP_BYTES",),
    "NOTES_BYTES": ("maintenance.compaction.noted_batches.LEAST_MEMORY_BYTES",),
    "SECTION_BYTES": ("format.decoding.record_sections.TARGET_BYTES", "format.cleaner.clean.REBUILT_BYTES"),
    "ROLL_WAVE_PARTITIONS": ("maintenance.rolling.roll.WAVE_PARTITIONS",),
    "MOST_CHUNKS": ("maintenance.rolling.roll_plan.MOST_CHUNKS",),
    "MERGE_CHUNKS": ("maintenance.rolling.roll_plan.MERGE_CHUNKS",),
    "SEGMENTS_A_WAVE": (f"{_VACUUM}.SEGMENTS_A_WAVE",),
    "SEGMENTS_A_TASK": (f"{_VACUUM}.SEGMENTS_A_TASK",),
    "DIRECTORIES_A_WAVE": (f"{_VACUUM}.DIRECTORIES_A_WAVE",),
    "DIRECTORIES_A_TASK": (f"{_VACUUM}.DIRECTORIES_A_TASK",),
    "VERIFY_SEGMENTS_A_WAVE": ("maintenance.verification.deep.SEGMENTS_A_WAVE",),
    "TABLE_PART_BYTES": ("lake.update.PART_BYTES", "lake.since.PART_BYTES"),
    "LEAST_GROUP_ROWS": ("lake.rows.LEAST_GROUP_ROWS",),
    "TABLE_WAVE_BYTES": ("lake.table.WAVE_BYTES_A_SLOT",),
    "INDEX_RANGE_RECORDS": ("keys.index_plan.RANGE_RECORDS",),
    "INDEX_WAVE_BYTES": ("keys.job.WAVE_BYTES_A_SLOT",),
    "MOST_MERGED_RUNS": ("keys.index_plan.MOST_MERGED",),
    "MERGED_SLICE_RECORDS": ("keys.merge.SLICE_RECORDS",),
    "MOST_INLINE": ("keys.run_writer.MOST_INLINE",),
    "MOST_LISTED": ("keys.run_writer.MOST_LISTED",),
    "NEAR_BYTES": ("keys.look_up.NEAR_BYTES",),
    "ENTRIES_A_PART": ("keys.run_writer.ENTRIES_A_PART",),
    "MOST_FAN_BITS": ("keys.run_layout.MOST_FAN_BITS",),
    "WINDOW_ENTRIES": ("keys.run_file.WINDOW_ENTRIES",),
    "RECORDS_A_KEY": ("keys.read_ahead.RECORDS_A_KEY",),
    "LEAST_ENTRIES": ("keys.read_ahead.LEAST_ENTRIES",),
    "MOST_STEPS": ("replicas.topic_mirror.MOST_STEPS",),
    # How often, and how long, somebody tries again
    "STORE_ATTEMPTS": ("storage.storage.ATTEMPTS",),
    "COMMIT_FAILURES": ("log.manifest.commit.committing.FAILURES",),
    "COMMIT_PAUSE_SECONDS": ("log.manifest.commit.committing.FIRST_PAUSE_SECONDS",),
    "COMMIT_TRIES": ("log.manifest.commit.committing.TRIES",),
    "GROUP_TRIES": ("log.groups.group_swap.TRIES",),
    "GROUP_PAUSE_SECONDS": ("log.groups.group_swap.LONGEST_PAUSE_SECONDS",),
    "REGISTRY_ATTEMPTS": ("values.registries.http.ATTEMPTS",),
    "REGISTRY_WAIT_SECONDS": ("values.registries.http.FIRST_WAIT_SECONDS",),
    "REGISTRY_SECONDS": ("values.registries.http.MOST_SECONDS",),
    "SIGNAL_AGAIN_SECONDS": ("cli.interrupts.AGAIN_SECONDS",),
    # Formats
    "STEP_BYTES": ("format.legacy.STEP_BYTES",),
    "RUN_BYTES": ("format.legacy.RUN_BYTES",),
    "MIN_DECOMPRESSED_LIMIT": ("format.compression.MIN_DECOMPRESSED_LIMIT",),
    "MAX_DECOMPRESSED_LIMIT": ("format.compression.MAX_DECOMPRESSED_LIMIT",),
    "MAX_RATIO": ("format.compression.MAX_RATIO",),
}
"""Where each limit is: a name of a module, or a key of a dictionary there."""


class Limits(Protocol):
    """The fixture `limits`: these limits of LIMITS have these values for the rest of the test."""

    def __call__(self, **values: Any) -> None: ...


@contextlib.contextmanager
def small_limits(**values: Any) -> Iterator[None]:
    """While it lasts, these limits of LIMITS have these values in this process."""
    with contextlib.ExitStack() as patched:
        for name, value in values.items():
            for place in LIMITS[name]:
                target, _, key = f"spark_segments.{place}".partition(":")
                assert not key or key in pkgutil.resolve_name(target), f"{place} is not where it is looked for"
                patch = mock.patch.dict(target, {key: value}) if key else mock.patch(target, value)
                patched.enter_context(patch)
        yield
