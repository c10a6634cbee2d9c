"""The settings of an imported topic: Kafka's own without retention, overridden by the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_segments.config import normal_overrides
from spark_segments.config.table import KEYS
from spark_segments.errors import InvalidOptionError, SegmentsError, StorageError
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.internal_topics.cluster_metadata import topic_configs

RETENTION = ("retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """The settings of a topic that is made by an import, and what a user should know about them."""

    config: dict[str, str]
    warnings: list[str]


def imported_settings(
    source: KafkaDirectory, topics: Sequence[str], overrides: Mapping[str, str], *, keep_retention: bool
) -> dict[str, ImportedSettings]:
    """{topic: settings}. Records must not expire for having been imported: without `keep_retention`, retention.ms is -1
    and Kafka's retention.bytes is left behind, unless `overrides` say otherwise. Damaged settings are a warning; raises
    StorageError where they cannot be read.
    """
    unread: str | None = None
    try:
        configs = topic_configs(source.log_directory)
    except StorageError:
        raise
    except (SegmentsError, FileNotFoundError) as error:
        configs = None
        unread = str(error)
    settings = {}
    for topic in topics:
        warnings: list[str] = []
        theirs = None if configs is None else configs.get(topic)
        if unread is not None:
            warnings.append(f"Kafka's settings of its topics cannot be read: {unread}")
        kept = kept_settings(topic, theirs, keep_retention=keep_retention)
        config = kept.config | dict(overrides)
        warnings += kept.warnings
        if theirs is None and "cleanup.policy" not in overrides and source.is_cleaned(topic):
            warnings.append(
                f"Kafka compacted {topic}, but its settings are not in this directory: it gets cleanup.policy=delete. "
                "--config cleanup.policy=compact, or topic alter, keeps it compacted"
            )
        settings[topic] = ImportedSettings(config, warnings)
    return settings


def kept_settings(topic: str, theirs: Mapping[str, str] | None, *, keep_retention: bool) -> ImportedSettings:
    """What a topic keeps of its settings in Kafka (None: they are not known): see `imported_settings`."""
    warnings = []
    config: dict[str, str] = {} if keep_retention and theirs is not None else {"retention.ms": "-1"}
    if keep_retention and theirs is None:
        warnings.append(f"Kafka does not say what {topic}'s retention is: it gets retention.ms=-1")
    for name, value in (theirs or {}).items():
        if name in RETENTION and not keep_retention:
            continue
        try:
            config |= normal_overrides({name: value}) if name in KEYS else {}
        except InvalidOptionError as error:
            warnings.append(f"Kafka's setting {name}={value} is left behind: {error.message}")
    return ImportedSettings(config, warnings)
