"""Configuration: Kafka's settings with their types, defaults and names, and the values in force.

Options of readers and writers are no settings. They belong to the layer that takes them.
"""

from __future__ import annotations

from spark_segments.config.rules import FILE as FILE
from spark_segments.config.rules import LONGEST_NAME as LONGEST_NAME
from spark_segments.config.rules import MOST_PARTITIONS as MOST_PARTITIONS
from spark_segments.config.rules import READ_COMMITTED as READ_COMMITTED
from spark_segments.config.rules import READ_UNCOMMITTED as READ_UNCOMMITTED
from spark_segments.config.rules import RESERVED_NAMES as RESERVED_NAMES
from spark_segments.config.rules import TOPIC as TOPIC
from spark_segments.config.rules import check_isolation_level as check_isolation_level
from spark_segments.config.rules import check_new_topic_name as check_new_topic_name
from spark_segments.config.rules import check_partition_count as check_partition_count
from spark_segments.config.rules import is_topic_name as is_topic_name
from spark_segments.config.rules import load_defaults as load_defaults
from spark_segments.config.rules import names_collide as names_collide
from spark_segments.config.rules import normal_overrides as normal_overrides
from spark_segments.config.rules import parse_overrides as parse_overrides
from spark_segments.config.rules import server_config as server_config
from spark_segments.config.rules import topic_config as topic_config
from spark_segments.config.rules import validate_topic_name as validate_topic_name
from spark_segments.config.table import DEFAULT as DEFAULT
from spark_segments.config.table import KEYS as KEYS
from spark_segments.config.table import SERVER_KEYS as SERVER_KEYS
from spark_segments.config.table import SegmentLimits as SegmentLimits
from spark_segments.config.table import ServerConfig as ServerConfig
from spark_segments.config.table import TopicConfig as TopicConfig
