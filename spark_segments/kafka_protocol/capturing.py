"""Capture: topics of a running cluster, their batches as the broker has them, at the same offsets."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    SegmentsError,
    UnknownTopicError,
)
from spark_segments.kafka_protocol.capture_branches import branch, name_here
from spark_segments.kafka_protocol.source import (
    SourceCluster,
    SourceTopic,
    patient,
)
from spark_segments.kafka_protocol.topic_capture import DivergedError, TopicCapture
from spark_segments.log.groups.kafka_groups import GroupOffsets, chosen_groups, keep_groups
from spark_segments.log.logdir import LogDir

PATIENCE_SECONDS = 60.0
"""How long a cluster may give no answer, or none that can be used, before a topic is given up."""

FAIL, BRANCH = "fail", "branch"
"""What becomes of a topic whose log in the cluster is another one: an error, or a new copy in another topic here."""

_ANSWER_SECONDS = 30.0


def capture(
    log: LogDir,
    servers: str,
    topics: Sequence[str] = ("*",),
    *,
    groups: Sequence[str] = (),
    client_config: Mapping[str, str] | None = None,
    keep_retention: bool = False,
    on_divergence: str = FAIL,
    recapture: bool = False,
    patience_seconds: float = PATIENCE_SECONDS,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Copies what topics of a running cluster have, up to their high watermarks, and returns what was added.

    `servers`: `host:port`, several with commas. `topics`: names or patterns; internal ones are left out. `groups`:
    names or patterns of groups, whose positions in these topics become those of the groups of the same name here.
    `client_config`: settings by the names of Kafka's clients. A new topic gets the cluster's settings and topic id, but
    for retention, unless `keep_retention`: retention.ms=-1. `progress(topic, done, total)`: offsets of the pass.

    `on_divergence`: where the cluster's log of a topic is another one, FAIL raises, and BRANCH leaves the topic here as
    it is, and captures all that the cluster has into another one, TOPIC.branch-1, say, where each later capture goes
    on. `recapture`: the same for every one of these topics, whatever its log is.

    Of each topic a dict: "topic" (its name here), "source" (in the cluster), "partitions", "records" and "bytes" that
    were added, "holes" as plain values, "lag" (offsets between the log ends here and the high watermarks seen last),
    "late", "branched" (whether the cluster's log was found to be another one), "groups" that have positions in it,
    "warnings".

    Call it again to go on. Offsets that the cluster removed before they were fetched are holes of the topic, recorded
    by the commit that passes them. A compacted topic is "late", and a warning says so from then on, where the cluster
    may have removed tombstones or abort markers that were not captured.

    Of several topics, those that fail are raised, as one LogDirError, after the others. Raises DivergedError where the
    cluster's log is another one: a topic was made again, or a leader lost records that were captured; SourceError where
    it does not answer for `patience_seconds`.
    """
    if on_divergence not in (FAIL, BRANCH):
        raise InvalidOptionError("on_divergence is unknown", expected=f"{FAIL}, {BRANCH}", found=on_divergence)
    with SourceCluster(servers, client_config, min(patience_seconds, _ANSWER_SECONDS)) as source:
        there = patient(source.topics, patience_seconds)
        names = sorted(name for name in there if any(fnmatch.fnmatchcase(name, one) for one in topics))
        if not names:
            raise UnknownTopicError(
                f"{servers} shows no topic {', '.join(topics)}",
                hint="Internal topics are left out, and brokers hide what this user may not read",
            )
        # Before the logs, so that no position lies above what is captured.
        read = patient(partial(_groups, source, groups, [there[name] for name in names]), patience_seconds)
        done, failed = [], {}
        for name in names:

            def passed(name: str = name) -> dict[str, Any]:
                return TopicCapture(log, source, there[name], keep_retention, patience_seconds, progress).run()

            try:
                if recapture:
                    branch(log, name, there)
                try:
                    done.append(passed())
                except DivergedError as error:
                    if on_divergence == FAIL:
                        raise
                    text = f"{error.message}. What was captured stays in {name_here(log, name)}; "
                    text += f"a new copy goes on in {branch(log, name, there)}"
                    done.append(passed() | {"branched": True})
                    done[-1]["warnings"].insert(0, text)
            except SegmentsError as error:
                failed[name] = error
        names_here = {one["source"]: one["topic"] for one in done}
        renamed = {
            group: {(names_here.get(topic, topic), number): one for (topic, number), one in offsets.items()}
            for group, offsets in read.items()
        }
        kept, warnings = keep_groups(log.manifests, renamed, [one["topic"] for one in done])
        for one in done:
            one["groups"] = kept[one["topic"]]
            one["warnings"] += [text for text in warnings if f" of {one['topic']}-" in text]
        if failed and len(names) == 1:
            raise failed[names[0]]
        if failed:
            raise LogDirError(
                f"Topics could not be captured: {', '.join(failed)}",
                path=log.uri,
                found="; ".join(str(error) for error in failed.values()),
                hint=f"The others were captured: {', '.join(one['topic'] for one in done) or 'there are none'}",
            ) from next(iter(failed.values()))
        return done


def _groups(source: SourceCluster, patterns: Sequence[str], topics: Sequence[SourceTopic]) -> GroupOffsets:
    if not patterns:
        return {}
    there = source.groups()
    return {
        group: source.positions(group, there[group], topics)
        for group in chosen_groups(there, patterns, "The cluster shows")
    }
