"""The names of a segment's files, which are Kafka's."""

from __future__ import annotations

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX = ".snapshot"

BASE_OFFSET_DIGITS = 20
"""Every file of a segment is named by its base offset, with leading zeros."""
