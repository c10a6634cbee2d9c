"""librdkafka's mock cluster: brokers in this process whose leaders move and which go down, as a test says."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka  # noqa: F401  # loads librdkafka

BROKER_SETTINGS = {"broker.version.fallback": "2.2"}
"""Of a client of these brokers: what they answer to a version of ApiVersions that they do not know is no answer."""

_PRODUCER = 0
_ERROR_BYTES = 512


def _library() -> ctypes.CDLL:
    """The librdkafka that confluent-kafka has loaded."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "librdkafka" in line}
    library = ctypes.CDLL(min(loaded))
    for name, result, arguments in (
        ("rd_kafka_conf_new", ctypes.c_void_p, ()),
        ("rd_kafka_new", ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)),
        ("rd_kafka_destroy", None, (ctypes.c_void_p,)),
        ("rd_kafka_mock_cluster_new", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)),
        ("rd_kafka_mock_cluster_destroy", None, (ctypes.c_void_p,)),
        ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, (ctypes.c_void_p,)),
        (
            "rd_kafka_mock_topic_create",
            ctypes.c_int,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
        ),
        (
            "rd_kafka_mock_partition_set_leader",
            ctypes.c_int,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32),
        ),
        ("rd_kafka_mock_broker_set_down", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
        ("rd_kafka_mock_broker_set_up", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MovingCluster:
    """Brokers 1 to `brokers`, each with all partitions. A broker that goes down cuts its connections."""

    def __init__(self, library: ctypes.CDLL, cluster: int, brokers: int) -> None:
        self._library, self._cluster = library, cluster
        self.brokers = range(1, brokers + 1)
        self.addresses = library.rd_kafka_mock_cluster_bootstraps(cluster).decode().split(",")

    def make(self, topic: str, partitions: int) -> None:
        self._done("topic_create", topic.encode(), partitions, len(self.brokers))

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Another broker leads a partition from now on."""
        self._done("partition_set_leader", topic.encode(), partition, broker)

    def down(self, broker: int) -> None:
        self._done("broker_set_down", broker)

    def up(self, broker: int) -> None:
        self._done("broker_set_up", broker)

    def _done(self, what: str, *arguments: bytes | int) -> None:
        error = getattr(self._library, f"rd_kafka_mock_{what}")(self._cluster, *arguments)
        assert not error, f"{what}: error {error}"


@contextmanager
def moving_cluster(brokers: int = 3) -> Iterator[MovingCluster]:
    """A cluster in this process, for as long as the context lasts. The log of a partition keeps its newest 5 MiB."""
    library = _library()
    text = ctypes.create_string_buffer(_ERROR_BYTES)
    client = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), text, _ERROR_BYTES)
    assert client, text.value
    cluster = library.rd_kafka_mock_cluster_new(client, brokers)
    try:
        yield MovingCluster(library, cluster, brokers)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)
