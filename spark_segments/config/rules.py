"""The rules of configuration: precedence, the defaults file, `--config` arguments, valid topic names and levels.

A topic's setting wins over the defaults file, and the file over the defaults of table.py. Topic settings have Kafka's
topic names (`retention.ms`). The file has the names of Kafka's server.properties (`log.retention.hours`), where
milliseconds win over minutes and minutes over hours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from spark_segments.config.table import KEYS, SERVER_KEYS, ServerConfig, TopicConfig
from spark_segments.config.values import INT, Setting, Synonym, read_value, render_value
from spark_segments.errors import InvalidOptionError, InvalidTopicError, nearest

TOPIC, FILE = "topic", "file"
"""The values of `TopicConfig.sources`, with DEFAULT: where a setting in force comes from."""

MAX_TOPIC_NAME = 249
_TOPIC_NAME = re.compile(rf"(?!\.{{1,2}}\Z)[a-zA-Z0-9._-]{{1,{MAX_TOPIC_NAME}}}")
_RULE = f"1 to {MAX_TOPIC_NAME} of the characters a-z A-Z 0-9 . _ -, and neither . nor .."

RESERVED_NAMES = frozenset(
    ("_clock", "_followers", "_groups", "_keys", "_manifest", "_recovery", "_replay", "_serve", "log-directory.json")
)
"""What a log directory has beside its topics' files. No new topic gets such a name."""

_BY_SERVER_NAME = {synonym.name: (setting, synonym) for setting in KEYS.values() for synonym in setting.server}
_GONE = {
    "message.timestamp.difference.max.ms": "Kafka 4.0 took it out: set message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms",
}

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
"""The values of isolation.level, the setting of a reader."""


def topic_config(overrides: Mapping[str, Any], defaults: Mapping[str, str] | None = None) -> TopicConfig:
    """The configuration in force for a topic: its `overrides` win over `defaults` (see `load_defaults`).

    Raises InvalidOptionError for an unknown key, a wrong value, or two values that contradict each other.
    """
    typed: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value in (defaults or {}).items():
        if name not in SERVER_KEYS:
            typed[name] = _setting_of(name).parse(value)
            sources[name] = FILE
    for name, value in overrides.items():
        typed[name] = _setting_of(name).parse(value)
        sources[name] = TOPIC
    values = {name.replace(".", "_"): value for name, value in typed.items()}
    config = TopicConfig(**values, _sources=sources)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidOptionError(
            "min.compaction.lag.ms is larger than max.compaction.lag.ms",
            expected=f"at most {config.max_compaction_lag_ms}",
            found=config.min_compaction_lag_ms,
        )
    return config


def server_config(overrides: Mapping[str, Any], defaults: Mapping[str, str] | None = None) -> ServerConfig:
    """The jobs' settings in force. `overrides`, by Kafka's server names, win over `defaults` (see `load_defaults`)."""
    settings = {name: value for name, value in (defaults or {}).items() if name in SERVER_KEYS} | dict(overrides)
    typed = {name: _setting_of(name, SERVER_KEYS).parse(value) for name, value in settings.items()}
    return ServerConfig(**{name.replace(".", "_"): value for name, value in typed.items()})


def load_defaults(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads a defaults file in Kafka's server names.

    The result has the settings of topics by their topic names, and the settings of the jobs by their server names.
    `log.retention.hours=24` gives `{"retention.ms": "86400000"}`, unless the file has minutes or milliseconds, too.
    """
    pairs = read_properties(path)
    defaults: dict[str, str] = {}
    for name, (text, line) in pairs.items():
        try:
            if name in SERVER_KEYS:
                defaults[name] = render_value(SERVER_KEYS[name].parse(text))
            elif name in _BY_SERVER_NAME:
                # Every value is read, so that an error shows even where another value wins.
                setting, synonym = _BY_SERVER_NAME[name]
                value = _from_server(setting, synonym, text)
                if synonym.name == next(other.name for other in setting.server if other.name in pairs):
                    defaults[setting.name] = render_value(value)
            else:
                raise _unknown(name, {*_BY_SERVER_NAME, *SERVER_KEYS})
        except InvalidOptionError as error:
            error.message += f" in line {line}"
            error.path = os.fspath(path)
            raise
    topic_config({}, defaults)
    return defaults


def parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    """Reads `--config` arguments as Kafka's tools take them: `k=v`, `k1=v1,k2=v2`, `k=[a,b]`, `k=a,b`.

    A part between commas without a `=` belongs to the value before it. Keys and values are not checked here.
    """
    overrides: dict[str, str] = {}
    for text in texts:
        for part in re.split(r",(?=[^,=\[\]]+=)(?![^\[]*\])", text):
            name, separator, value = (piece.strip() for piece in part.partition("="))
            if not separator or not name:
                found_text = repr(part) if _NAME.fullmatch(part.strip()) else "no name and ="
                raise InvalidOptionError("A setting has no value", expected="name=value", found=found_text)
            if value.startswith("[") and value.endswith("]"):
                value = value[1:-1].strip()
            if overrides.setdefault(name, value) != value:
                raise InvalidOptionError(f"{name} is given twice", expected="one value", found="two different values")
    return overrides


def normal_overrides(overrides: Mapping[str, Any]) -> dict[str, str]:
    """Checks a topic's settings. Returns them as texts for the manifest (`{"retention.ms": 1000}` gives `"1000"`)."""
    topic_config(overrides)
    return {name: render_value(KEYS[name].parse(value)) for name, value in sorted(overrides.items())}


def is_topic_name(name: object) -> bool:
    """Whether Kafka takes the name for a topic's."""
    return isinstance(name, str) and _TOPIC_NAME.fullmatch(name) is not None


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicError for a name that Kafka refuses."""
    if not is_topic_name(name):
        raise InvalidTopicError("Invalid topic name", expected=_RULE, found=repr(name)[:300])


def names_collide(name: str, other: str) -> bool:
    """Whether Kafka's metrics cannot tell these two different topic names apart."""
    return other != name and other.replace(".", "_") == name.replace(".", "_")


def check_new_topic_name(name: str, existing: Iterable[str]) -> None:
    """Raises InvalidTopicError for a name that Kafka refuses to create beside the `existing` topics, or that something
    else in a log directory has.

    Kafka refuses `a.b` beside `a_b`, because its metrics cannot tell them apart. The same name is not refused here.
    """
    validate_topic_name(name)
    if name.lower() in RESERVED_NAMES:  # a disk may ignore case
        raise InvalidTopicError(
            f"Topic name {name} is reserved: a log directory has something else of that name",
            expected=f"none of {', '.join(sorted(RESERVED_NAMES))}",
            found=repr(name),
        )
    for other in existing:
        if names_collide(name, other):
            hint = "Names that differ only in '.' and '_' collide in Kafka's metrics: choose another one"
            raise InvalidTopicError(f"Topic name {name} collides with the topic {other}", hint=hint)


def _setting_of(name: str, settings: Mapping[str, Setting] = KEYS) -> Setting:
    if name not in settings:
        raise _unknown(name, settings)
    return settings[name]


def _unknown(name: str, names: Iterable[str]) -> InvalidOptionError:
    """The error for an unknown key, with the right name where it can be guessed."""
    return InvalidOptionError(f"Unknown configuration key {shown_setting(name)}", hint=_hint_for(name, names))


def _hint_for(name: str, names: Iterable[str]) -> str | None:
    if name in _BY_SERVER_NAME:  # a server name in place of a topic name
        setting, synonym = _BY_SERVER_NAME[name]
        unit = f" (in milliseconds, so times {synonym.factor})" if synonym.factor > 1 else ""
        return f"A topic's own setting of it is {setting.name}{unit}"
    if name in KEYS and KEYS[name].server:  # a topic name in place of a server name
        return f"In a defaults file it is {KEYS[name].server[0].name}"
    if name in KEYS:
        return "It can only be set on a topic"
    if name in SERVER_KEYS:
        return "It is no setting of a topic: it belongs into the defaults file"
    gone = _GONE.get(name.removeprefix("log."))
    if gone is not None:
        return gone
    close = nearest(name, set(names))
    return None if close is None else f"Did you mean {close}?"


def shown_setting(name: str) -> str:
    """A setting's name in an error. What does not look like one may be a password."""
    return name if _NAME.fullmatch(name) else "that is no name of a setting"


def _from_server(setting: Setting, synonym: Synonym, text: str) -> Any:
    """A topic setting's value from the text under one of its server names."""
    value = read_value(INT if synonym.factor > 1 else setting.type, text)  # Kafka has an int for the coarser units
    if setting.name == "retention.ms" and isinstance(value, int):
        # The only setting that Kafka reads differently in a file than on a topic: in a file any negative number means
        # no limit, and zero is refused.
        if value == 0:
            raise InvalidOptionError(
                f"Invalid value for {synonym.name}", expected="at least 1, or -1 for no limit", found=0
            )
        value = max(value, -1)
    if synonym.factor > 1 and value is not None and value > 0:
        value *= synonym.factor
    if value is None or not setting.valid.accepts(value):
        raise setting.refusal(text, synonym.name)
    return value


_NAME = re.compile(r"[a-z]+(?:[._-][a-z0-9]+)*")
_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)(\s*[=:]\s*|\s+)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | os.PathLike[str]) -> dict[str, tuple[str, int]]:
    """{key: (value, line number)} of a file.

    Raises InvalidOptionError for a file that is missing or no text, and for a key with two different values: nobody
    knows which of the two was meant.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"Cannot read the configuration file ({error})", path=name) from error
    pairs: dict[str, tuple[str, int]] = {}
    for line, number in _logical_lines(text):
        match = _PAIR.match(line)
        if match is None or (match[2].isspace() and "." not in match[1]):  # words: they may be a password
            raise InvalidOptionError(f"Line {number} is no setting", path=name, expected="key=value")
        key, value = (_ESCAPE.sub(_unescaped, part).strip() for part in (match[1], match[3]))
        if key in pairs and pairs[key][0] != value:
            lines = f"Lines {pairs[key][1]} and {number} set {shown_setting(key)}"
            raise InvalidOptionError(lines, path=name, expected="one value", found="two different values")
        pairs[key] = value, number
    return pairs


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Lines that are neither empty nor comments. A line that ends in an odd number of backslashes takes in the next."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            line = line[:-1] + next(lines, (0, ""))[1].lstrip()
        yield line, number


def _unescaped(match: re.Match[str]) -> str:
    escaped = match.group(1)
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)


LONGEST_NAME = 255
"""How many bytes a name in a directory has at most, on all usual file systems."""

MOST_PARTITIONS = 1_000_000
"""Upper bound on a topic's partitions: a mistyped number makes no billion rows."""


def check_partition_count(topic: str, count: int) -> None:
    """Raises InvalidOptionError for a number of partitions that the topic cannot have."""
    most = min(MOST_PARTITIONS, 10 ** (LONGEST_NAME - len(topic) - 1))  # of directories `<topic>-<partition>`
    if not (isinstance(count, Integral) and 1 <= count <= most):
        raise InvalidOptionError("A topic cannot have so many partitions", expected=f"1 to {most}", found=repr(count))


def check_isolation_level(isolation_level: str) -> str:
    """The level itself. Raises InvalidOptionError for an unknown level."""
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise InvalidOptionError(
            "Unknown isolation.level", expected=f"{READ_UNCOMMITTED} or {READ_COMMITTED}", found=repr(isolation_level)
        )
    return isolation_level
