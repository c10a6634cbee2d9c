"""Kafka's protocol: topics of a log directory for Kafka's own clients, the capture of a running cluster, and the replay
of topics into one. The server's messages are kio's, its framing is ours; a capture's client is kafka-python's, a
replay's is librdkafka.

Serving and capturing decode no record and open no file: partitions give record batches as they lie in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_segments.lazy_names import imported_name

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.capturing.capture import capture
    from spark_segments.kafka_protocol.capturing.capture_options import CaptureOptions
    from spark_segments.kafka_protocol.replaying.rehashing import Partitions
    from spark_segments.kafka_protocol.replaying.replay import replay
    from spark_segments.kafka_protocol.replaying.replay_options import ReplayOptions

__all__ = ["CaptureOptions", "Partitions", "ReplayOptions", "capture", "replay"]


def __getattr__(name: str) -> Any:
    # Each has a separate client library, and the server needs neither.
    return imported_name(__name__, name)
