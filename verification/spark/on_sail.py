"""python -m verification.spark.on_sail [pytest's arguments]: runs Spark's tests on Sail, all but those listed here.

What is listed is what Sail 0.7 does not do, or what only a JVM can answer. docs/how-to/sail.md says it to users.
"""

from __future__ import annotations

import os
import sys

import pytest

PATHS = ("tests/spark", "tests/maintenance/test_compact_spark.py", "tests/test_execution.py")

# {why: names of tests, or of files}
NOT_ON_SAIL = {
    "each action on a DataFrame loads it anew": (
        "test_case_96_explicit_earliest_to_latest_offsets_are_those_of_the_load",
        "test_case_110_a_dataframe_reads_what_retention_has_taken_since",
        "test_a_dataframe_reads_the_log_of_its_load_whatever_is_appended_later",
        "test_a_dataframe_with_a_schema_reads_the_log_of_its_first_action",
        "test_a_frame_that_is_older_than_the_delete_delay_says_so",
    ),
    "a wrong load fails at its first action": (
        "test_a_wrong_load_fails_at_once_with_one_clear_error",
        "test_a_location_that_is_no_log_directory_is_an_error",
        "test_topics_of_one_type_are_read_together",
        "test_an_option_that_is_misspelt_is_named",
    ),
    "tables keep no metadata of columns, so that options stay with no table": ("test_catalog.py",),
    "save modes other than append reach the writer as append": (
        "test_save_modes_that_are_not_supported",
        "test_a_write_without_a_mode_says_which_to_add",
        "test_a_topic_is_never_overwritten",
    ),
    "a task does not know its number": (
        "test_a_row_without_a_key_fails_the_write_and_names_row_and_task",
        "test_on_spark_each_task_is_a_partition",
    ),
    "writes of a plan whose partitions Sail miscounts fail, before anything is committed": (
        "test_the_command_appends_rows_in_a_format",
    ),
    "no hash of lists": ("test_records_come_whole",),
    "asks the JVM, an RDD or the driver's own files": (
        "test_conf.py",
        "test_session.py",
        "test_a_topic_that_becomes_compacted_while_the_tasks_write_refuses_the_commit",
        "test_a_commit_that_is_refused_leaves_the_log_as_it_was",
        "test_a_job_killed_between_its_files_and_its_commit_leaves_the_log_as_it_was",
        "test_every_directory_reads_record_for_record",
        "test_a_directory_split_into_many_tasks_reads_the_same",
        "test_it_is_the_same_however_it_is_split",
        "test_partitions_are_split_to_the_number_asked_for",
        "test_a_write_of_no_rows_records_its_transaction",
        "test_spark_compacts_a_large_partition_by_many_tasks",
        "test_slots_are_cores_here_and_parallelism_there",
    ),
    "runs on Sail in any case": ("test_sail.py",),
}


class Selection:
    """Leaves out what is listed."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        listed = [name for names in NOT_ON_SAIL.values() for name in names]
        left_out = [item for item in items if any(name in item.nodeid for name in listed)]
        missing = [name for name in listed if not any(name in item.nodeid for item in items)]
        assert not missing, f"there are no such tests: {missing}"
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def main(arguments: list[str]) -> int:
    os.environ["TESTS_ON"] = "sail"
    return int(pytest.main([*PATHS, "-m", "spark", *arguments], plugins=[Selection()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
