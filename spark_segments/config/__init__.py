"""Configuration: Kafka's settings with their types, defaults and names, and the values in force.

Options of readers and writers are no settings. They belong to the layer that takes them.
"""

from __future__ import annotations

from spark_segments.config.rules import (
    FILE,
    LONGEST_NAME,
    MOST_PARTITIONS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    RESERVED_NAMES,
    TOPIC,
    check_isolation_level,
    check_new_topic_name,
    check_partition_count,
    is_topic_name,
    load_defaults,
    names_collide,
    normal_overrides,
    parse_overrides,
    server_config,
    topic_config,
    validate_topic_name,
)
from spark_segments.config.table import (
    DEFAULT,
    KEYS,
    SERVER_KEYS,
    SegmentLimits,
    ServerConfig,
    TopicConfig,
)
from spark_segments.config.topic_names import is_pattern, selected_topics

__all__ = [
    "DEFAULT",
    "FILE",
    "KEYS",
    "LONGEST_NAME",
    "MOST_PARTITIONS",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "RESERVED_NAMES",
    "SERVER_KEYS",
    "TOPIC",
    "SegmentLimits",
    "ServerConfig",
    "TopicConfig",
    "check_isolation_level",
    "check_new_topic_name",
    "check_partition_count",
    "is_pattern",
    "is_topic_name",
    "load_defaults",
    "names_collide",
    "normal_overrides",
    "parse_overrides",
    "selected_topics",
    "server_config",
    "topic_config",
    "validate_topic_name",
]
