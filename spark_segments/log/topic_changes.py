"""Plans for `Manifest.commit`: the alteration of a topic, and the deletion of its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from spark_segments.config import normal_overrides, topic_config
from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, PolicyViolationError
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.commit import Plan
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import check_partition, check_partition_count


def altered(config: Mapping[str, str | None], partitions: int | None, defaults: Mapping[str, str]) -> Plan:
    """Sets configuration values (None takes a value away) and raises the number of partitions.

    The plan raises InvalidOptionError for a setting or a number of partitions that is not allowed.
    """

    def plan(snapshot: Snapshot) -> Change | None:
        overrides: dict[str, str] = dict(snapshot.config)
        for key, value in config.items():
            if value is None:
                overrides.pop(key, None)
            else:
                overrides |= normal_overrides({key: value})
        topic_config(overrides, defaults)
        count = snapshot.partitions.num_rows
        if partitions is not None and partitions < count:
            raise InvalidOptionError(
                "The number of partitions can only be raised", expected=f"at least {count}", found=partitions
            )
        check_partition_count(snapshot.topic, partitions or count)
        added = [Partition(snapshot.topic_id, number) for number in range(count, partitions or count)]
        if overrides == snapshot.config and not added:
            return None
        return Change("alter", config=overrides, partitions=added)

    return plan


def records_deleted(before_offsets: Mapping[int, int], defaults: Mapping[str, str], uri: str) -> Plan:
    """Moves the log start of partitions up to the offsets given; -1 means the log end.

    The plan raises as `Topic.delete_records` does.
    """

    def plan(snapshot: Snapshot) -> Change | None:
        config = topic_config(snapshot.config, defaults)
        if not config.delete:
            raise PolicyViolationError(
                f"Records of topic {snapshot.topic} cannot be deleted by offset",
                path=uri,
                expected="a cleanup.policy with delete",
                found=",".join(sorted(config.cleanup_policy)) or "none",
                hint="Set cleanup.policy=compact,delete for as long as it takes: retention.ms and retention.bytes "
                "apply from then on, and -1 keeps all that they would take",
            )
        rows = []
        for number, before in before_offsets.items():
            check_partition(snapshot, number)
            row = snapshot.partition(number)
            before = row.log_end_offset if before == -1 else before
            if not 0 <= before <= row.log_end_offset:
                raise OffsetOutOfRangeError(
                    f"Cannot delete records of {snapshot.topic}-{number}",
                    expected=f"an offset from 0 to {row.log_end_offset}",
                    found=before,
                )
            if before > row.log_start_offset:
                rows.append(dataclasses.replace(row, log_start_offset=before))
        return Change("delete-records", partitions=rows) if rows else None

    return plan
