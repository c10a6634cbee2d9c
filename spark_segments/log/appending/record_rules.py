"""What a topic's configuration asks of the records that are appended: keys, timestamps, compression."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.config.values import LONG_MAX
from spark_segments.errors import InvalidOptionError, InvalidRecordError
from spark_segments.format.layout import CODECS, NO_TIMESTAMP

DEFAULT_ZSTD_LEVEL = 1


def key_missing(topic: str, row: int) -> InvalidRecordError:
    """The error for a row (counted from 1) without key, which a compacted topic refuses: Kafka's LogValidator."""
    return InvalidRecordError(
        f"Topic {topic} is compacted: a record without a key cannot be appended",
        expected="a key in every row",
        found=f"no key in row {row}",
        hint="Give every row a key, or take compact out of the topic's cleanup.policy",
    )


def check_timestamps(timestamps: pa.Array, topic: str, config: TopicConfig, now_ms: int) -> None:
    """Raises InvalidOptionError for a timestamp further from `now_ms` than message.timestamp.{before,after}.max.ms say.

    Kafka's LogValidator: a record without a timestamp (-1 ms) passes.
    """
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if min(before, after) >= LONG_MAX:
        return
    times_ms = np.asarray(timestamps.cast(pa.int64())) // 1000
    wrong = (times_ms != NO_TIMESTAMP) & ((times_ms < now_ms - before) | (times_ms > now_ms + after))
    if wrong.any():
        row = int(wrong.argmax())
        side, limit = ("after", after) if times_ms[row] > now_ms else ("before", before)
        raise InvalidOptionError(
            f"A record of topic {topic} has a timestamp too far from now",
            expected=f"at most {limit} ms {side} {now_ms} (message.timestamp.{side}.max.ms)",
            found=f"{int(times_ms[row])} (row {row} of {len(times_ms)} written together)",
            hint="Fix the timestamp column, or raise the topic's limit",
        )


def compression(config: TopicConfig, compression_type: str | None) -> tuple[int, int | None]:
    """(codec, level) of a writer: the option, else the topic's setting; where that is `producer`, zstd at level 1."""
    name = compression_type or config.compression_type
    if name == "producer":
        return CODECS["zstd"], DEFAULT_ZSTD_LEVEL
    if name == "uncompressed":
        name = "none"
    if name not in CODECS:
        raise InvalidOptionError(
            "Unknown compression.type",
            expected=f"one of {', '.join([*CODECS, 'producer'])}",
            found=repr(compression_type),
        )
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return CODECS[name], levels.get(name)
