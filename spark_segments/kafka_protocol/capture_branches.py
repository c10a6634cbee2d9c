"""The topics here that topics of a cluster are captured into: where one became another, a copy goes on in the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import count

from spark_segments.config import check_new_topic_name
from spark_segments.errors import (
    UnknownTopicError,
)
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.captured import GOES_ON_IN
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role

CAPTURE = "capture"
"""The operation of the commits."""


def name_here(log: LogDir, source: str) -> str:
    """The topic here that a topic of the cluster is captured into."""
    name = source
    while is_here(log, name) and (following := log.topic(name).snapshot.states.get(GOES_ON_IN)) is not None:
        name = following
    return name


def is_here(log: LogDir, name: str) -> bool:
    """Whether there is a topic of this name."""
    try:
        log.topic(name).manifest.snapshot()
    except UnknownTopicError:
        return False
    return True


def branch(log: LogDir, source: str, there: Collection[str]) -> str:
    """Lets the capture of a topic go on in another topic here, which the next pass makes, and returns its name."""
    before = name_here(log, source)
    if not is_here(log, before):
        return before  # which has nothing yet
    name = next(name for n in count(1) if (name := f"{source}.branch-{n}") not in there and not is_here(log, name))
    check_new_topic_name(name, [])

    def plan(current: Snapshot) -> Change:
        check_role(current, CAPTURE)
        return Change(
            CAPTURE, topic=dataclasses.replace(current.topic_row, states={**current.states, GOES_ON_IN: name})
        )

    log.topic(before).manifest.commit(plan)
    return name
