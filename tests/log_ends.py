"""Topics whose log ends with a hole, by each way there is: the records before the end are gone, and the end stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_segments import LogDir
from spark_segments.maintenance import erase, retain, roll
from verification.kafka_protocol.serving import with_a_hole
from verification.world.topics import append, later

TOPIC = "gone"
LOG_END = 200


def append_new(log: LogDir) -> None:
    append(log, "new", topic=TOPIC)


def _captured(location: str) -> LogDir:
    return with_a_hole(location)


def _erased(location: str) -> LogDir:
    log = _filled(location)
    erase(log, keys=[b"late"], topics=[TOPIC])
    return log


def _expired(location: str) -> LogDir:
    log = _filled(location)
    log.topic(TOPIC).alter({"retention.ms": "1", "segment.ms": "1"})
    for job in (roll, retain):
        job(log, now_ms=later(log, 1))
    log.topic(TOPIC).alter({"retention.ms": "-1"})
    return log


def _deleted(location: str) -> LogDir:
    log = _filled(location)
    log.topic(TOPIC).delete_records({0: -1})
    return log


def _filled(location: str) -> LogDir:
    log = LogDir.create(location)
    log.create_topic(TOPIC, config={"retention.ms": "-1"})
    for key, numbers in (("early", range(100)), ("late", range(100, LOG_END))):
        log.topic(TOPIC).append([{"key": key, "value": str(number), "timestamp": number} for number in numbers])
    return log


ENDS: Mapping[str, tuple[Callable[[str], LogDir], range]] = {
    "captured": (_captured, range(100)),
    "erased": (_erased, range(100)),
    "expired": (_expired, range(0)),
    "deleted": (_deleted, range(0)),
}
"""By what took the last records: a function that makes such a log at a location, and the offsets that are there."""
