"""The names that topics get in another cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spark_segments.errors import InvalidOptionError


class Renaming:
    """{topic: its name there}. A topic with one `*` is a pattern: what the `*` stands for takes the place of the `*` in
    the name there. A name goes before patterns, and the first pattern that fits counts.
    """

    def __init__(self, rename: Mapping[str, str]) -> None:
        self._patterns: dict[str, tuple[re.Pattern[str], str]] = {}
        self.names = {topic: target for topic, target in rename.items() if "*" not in topic}
        for topic, target in rename.items():
            if (topic.count("*"), target.count("*")) not in ((0, 0), (1, 1)):
                raise InvalidOptionError(
                    "Not a new name", expected="TOPIC=NAME, or both with one *", found=f"{topic}={target}"
                )
            if "*" in topic:
                self._patterns[topic] = re.compile(re.escape(topic).replace(r"\*", "(.*)"), re.DOTALL), target
        self._unused = {*self._patterns}

    def target(self, topic: str) -> str:
        """The topic's name there."""
        if topic in self.names:
            return self.names[topic]
        for name, (pattern, target) in self._patterns.items():
            if (match := pattern.fullmatch(topic)) is not None:
                self._unused.discard(name)
                return target.replace("*", match[1])
        return topic

    def check_used(self) -> None:
        """Raises InvalidOptionError for a pattern that no topic has had its name by."""
        if self._unused:
            raise InvalidOptionError("No topic gets a new name by a pattern", found=", ".join(sorted(self._unused)))
