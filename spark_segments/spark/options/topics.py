"""Which topics a read subscribes to: the options subscribe, subscribePattern and assign, exactly one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options.option_values import OptionValues, json_object, whole_number
from spark_segments.spark.options.patterns import python_pattern

TOPIC_OPTIONS = ("subscribe", "subscribePattern", "assign")

# Kafka's own topics, which a subscription by pattern leaves out.
_INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"))


@dataclass(frozen=True, slots=True)
class Topics:
    """What to read, one of: names, a regular expression for whole names, or single partitions of topics."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None

    def chosen(self, list_topics: Callable[[], Iterable[str]]) -> list[str]:
        """The names of the subscribed topics, sorted. `list_topics` is called for a pattern only."""
        if self.pattern is not None:
            matches = re.compile(self.pattern).fullmatch
            return sorted(name for name in list_topics() if name not in _INTERNAL_TOPICS and matches(name))
        return sorted(self.partitions or self.names)


def topics_of(values: OptionValues) -> Topics:
    chosen = [name for name in TOPIC_OPTIONS if values.text(name) is not None]
    if len(chosen) != 1:
        writes = values.text("topic") is not None
        raise InvalidOptionError(
            "A reader needs to know its topics",
            expected=f"exactly one of the options {', '.join(TOPIC_OPTIONS)}",
            found=" and ".join(chosen) or "none of them",
            hint="The option topic is the writer's; a reader's is subscribe" if writes else None,
        )
    if chosen == ["subscribe"]:
        names = [name.strip() for name in (values.text("subscribe") or "").split(",")]
        names = list(dict.fromkeys(filter(None, names)))
        if not names:
            raise InvalidOptionError(
                "Option subscribe names no topic", expected="names of topics, with commas between them"
            )
        return Topics(names=tuple(names))
    if chosen == ["subscribePattern"]:
        return Topics(
            pattern=values.parsed(
                "subscribePattern", python_pattern, "a regular expression that a topic's whole name matches"
            )
        )
    partitions = values.parsed("assign", _assignment, 'JSON such as {"topicA":[0,1],"topicB":[2,4]}')
    if not partitions:
        raise InvalidOptionError("Option assign names no partition", expected='JSON such as {"topicA":[0,1]}')
    return Topics(partitions=partitions)


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    chosen = {}
    for topic, numbers in json_object(value).items():
        if not isinstance(numbers, list):
            raise ValueError(numbers)
        if numbers:
            chosen[topic] = tuple(sorted({whole_number(number, 0) for number in numbers}))
    return chosen
