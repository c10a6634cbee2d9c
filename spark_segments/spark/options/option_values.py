"""Single options of a reader or writer: found in upper or lower case, checked for misspelled names, and parsed.

options/__init__.py lists the options and checks them together.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from spark_segments.errors import InvalidOptionError

STORAGE_PREFIX = "storage."
KAFKA_PREFIX = "kafka."

# Options that Spark adds, and options of Spark's Kafka source that have no effect here.
_FOREIGN_NAMES = frozenset(
    (
        "paths",
        "checkpointlocation",
        "queryname",
        "groupidprefix",
        "usedeprecatedoffsetfetching",
        "kafkaconsumer.polltimeoutms",
    )
)
_FOREIGN_PREFIXES = (STORAGE_PREFIX, KAFKA_PREFIX, "fetchoffset.")
# Similarity from which on an unknown name counts as a misspelling of a known name.
_LIKENESS = 0.8

T = TypeVar("T")
TopicPartition = tuple[str, int]


class OptionValues:
    """The options that Spark hands over, read one at a time by name, in any case.

    Kafka's own configuration keys (with a dot in them) may have the prefix kafka. as well.

    Methods raise InvalidOptionError.
    """

    def __init__(self, options: Mapping[str, str], names: Sequence[str], side: str) -> None:
        """`names`: the options of the reader or writer. `side`: which of the two, for messages."""
        self._values = {key.lower(): str(value) for key, value in options.items()}
        spelt = {key.lower(): key for key in options}
        spellings = {name.lower(): name for name in names}
        for name in sorted(self._values.keys() - spellings.keys() - _FOREIGN_NAMES):
            nearest = difflib.get_close_matches(name, spellings, n=1, cutoff=_LIKENESS)
            if nearest and not name.startswith(_FOREIGN_PREFIXES):
                spelling = spellings[nearest[0]]
                typed = spelt[name] if spelt[name] != name else _in_case_of(name, spelling)
                raise InvalidOptionError(f"Unknown option {typed} of the {side}", hint=f"Did you mean {spelling}?")

    def has(self, name: str) -> bool:
        """Whether the option is given, with any value. A key of Kafka's may have its prefix."""
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """The option without white space around it; None where it is absent or empty."""
        value = self._values.get(name.lower())
        prefixed = self._values.get(KAFKA_PREFIX + name.lower()) if "." in name else None
        if value is not None and prefixed is not None and value.strip() != prefixed.strip():
            raise InvalidOptionError(
                f"Options {name} and {KAFKA_PREFIX}{name} contradict each other", found="two different values"
            )
        value = prefixed if value is None else value
        return None if value is None else value.strip() or None

    def _as_given(self, name: str) -> str:
        """The name for messages: with Kafka's prefix where the user gave it with the prefix."""
        return name if self.has(name) else KAFKA_PREFIX + name

    def parsed(self, name: str, parse: Callable[[str], T], expected: str) -> T | None:
        """The option's value, parsed by `parse`. A ValueError becomes an InvalidOptionError that names `expected`."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return parse(value)
        except InvalidOptionError as error:
            error.message = f"Option {self._as_given(name)}: {error.message}"
            raise
        except ValueError:
            raise InvalidOptionError(
                f"Option {self._as_given(name)} cannot be used", expected=expected, found=repr(value)
            ) from None

    def number(self, name: str, *, at_least: int) -> int | None:
        """A whole number of at most 64 bits."""

        def parse(value: str) -> int:
            number = int(value)
            if not at_least <= number < 2**63:
                raise ValueError(value)
            return number

        expected = f"a whole number of at least {at_least}"
        if len(self.text(name) or "") >= len(str(2**63)):
            expected += f" and at most {2**63 - 1}"
        return self.parsed(name, parse, expected)

    def flag(self, name: str, default: bool) -> bool:
        """true or false, in any case."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, values: tuple[str, ...], default: str) -> str:
        """One of `values`, given in any case."""

        def parse(value: str) -> str:
            if value.lower() not in values:
                raise ValueError(value)
            return value.lower()

        return self.parsed(name, parse, " or ".join(values)) or default

    def by_partition(self, name: str, expected: str, *, at_least: int) -> dict[TopicPartition, int] | None:
        """{"topic": {"0": number}} as {(topic, 0): number}."""
        numbers = self.by_topic(name, expected, {}, at_least=at_least)
        return None if numbers is None else numbers[1]

    def by_topic(
        self, name: str, expected: str, words: Mapping[str, int], *, at_least: int
    ) -> tuple[dict[str, int], dict[TopicPartition, int]] | None:
        """{"topic": {"0": number}, "other": "word"} as ({other: number}, {(topic, 0): number}); a word in any case."""

        def parse(value: str) -> tuple[dict[str, int], dict[TopicPartition, int]]:
            topics: dict[str, int] = {}
            parts: dict[TopicPartition, int] = {}
            for topic, numbers in json_object(value).items():
                if isinstance(numbers, str) and numbers.lower() in words:
                    topics[topic] = words[numbers.lower()]
                    continue
                for partition, number in _object(numbers).items():
                    parts[topic, _partition_number(partition)] = whole_number(number, at_least)
            return topics, parts

        return self.parsed(name, parse, expected)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """All options whose names begin with `prefix`, under the rest of their names."""
        return {name.removeprefix(prefix): value for name, value in self._values.items() if name.startswith(prefix)}


def _in_case_of(name: str, spelling: str) -> str:
    """A name in lower case, as Spark hands all names over, with the capital letters of the option that it is like."""
    letters = list(name)
    for block in difflib.SequenceMatcher(None, name, spelling.lower()).get_matching_blocks():
        letters[block.a : block.a + block.size] = spelling[block.b : block.b + block.size]
    return "".join(letters)


def json_object(text: str) -> dict[str, Any]:
    """Parses a JSON object. Raises ValueError where `text` is none, InvalidOptionError where it has a key twice."""
    return _object(json.loads(text, object_pairs_hook=_pairs))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise InvalidOptionError(
                f"{key} stands twice in the JSON of an option",
                hint="A topic has either an offset for all of its partitions or offsets by partition",
            )
        values[key] = value
    return values


def whole_number(value: Any, at_least: int) -> int:
    """A number from JSON. Raises ValueError where it is no number, is not whole or is out of range."""
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value < 2**63:
        raise ValueError(value)
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(value)
    return value


def _partition_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise ValueError(text)
    return int(text)
