"""Copies of a topic: where it became another one in the cluster, its copy goes on in the next of the topics here."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import count

from spark_segments.config import check_new_topic_name
from spark_segments.errors import UnknownTopicError
from spark_segments.kafka_protocol.capturing.captured_partition import CAPTURE
from spark_segments.log import Captured, Change, LogDirectory, Snapshot


def topic_here(log: LogDirectory, source: str) -> tuple[str, Snapshot | None]:
    """The topic here that a topic of the cluster is captured into: its name, and what it is, None before it is made."""
    name = source
    while True:
        snapshot = _snapshot(log, name)
        following = None if snapshot is None else snapshot.states.get(Captured.GOES_ON_IN)
        if following is None:
            return name, snapshot
        name = following


def _snapshot(log: LogDirectory, name: str) -> Snapshot | None:
    try:
        return log.snapshot(name)
    except UnknownTopicError:
        return None


def branch(log: LogDirectory, source: str, cluster_topics: Collection[str]) -> str:
    """Lets the capture of a topic go on in another topic here, which the next pass makes, and returns its name."""
    before, snapshot = topic_here(log, source)
    if snapshot is None:
        return before  # which has nothing yet
    names = (f"{source}.branch-{number}" for number in count(1))
    name = next(name for name in names if name not in cluster_topics and _snapshot(log, name) is None)
    check_new_topic_name(name, [])

    def plan(current: Snapshot) -> Change:
        current.check_role(CAPTURE)
        return Change(
            CAPTURE, topic=dataclasses.replace(current.topic_row, states={**current.states, Captured.GOES_ON_IN: name})
        )

    log.manifest(before).commit(plan)
    return name
