"""Names and patterns of topics, as callers give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from spark_segments.config.rules import validate_topic_name
from spark_segments.errors import InvalidOptionError


def is_pattern(name: str) -> bool:
    """Whether a topic is named by a pattern, such as `orders*`."""
    return not {*"*?["}.isdisjoint(name)


def selected_topics(names: Iterable[str], topics: Sequence[str] | None) -> list[str]:
    """The names that `topics` has or that match a pattern of it (`orders*`), and the other names of `topics`, which are
    no patterns; sorted. All names where it is None. Raises InvalidTopicError for a name that no topic has.
    """
    if isinstance(topics, str):
        raise InvalidOptionError("topics is a list of names and patterns", expected=f"[{topics!r}]", found=repr(topics))
    if topics is None:
        return sorted(names)
    matching = {name for name in names if any(fnmatchcase(name, pattern) for pattern in topics)}
    exact = {topic for topic in topics if not is_pattern(topic)}
    for name in exact:
        validate_topic_name(name)
    return sorted(matching | exact)
