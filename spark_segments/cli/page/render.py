"""The page as one HTML text: the templates beside this module, which escape every value."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from spark_segments import __version__
from spark_segments.cli.page.log_state import TopicsShown
from spark_segments.cli.page.topic_table import TopicLine, shared_facts
from spark_segments.cli.page.view import ACTIVE, CLEAN, DIRTY, JOBS, SEALED, BlockView, blocks_a_strip, topic_view
from spark_segments.cli.page.words import count, duration, ratio, relative, when
from spark_segments.config import TopicConfig
from spark_segments.errors import MissingExtraError
from spark_segments.face.history import Size
from spark_segments.log import Snapshot
from spark_segments.quantities import human_bytes, iso, moment, plural

if TYPE_CHECKING:
    from spark_segments.log import GroupLag

try:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
except ModuleNotFoundError as error:
    raise MissingExtraError("cli", "Pages", "jinja2") from error

_WORDS = {CLEAN: "clean tail", DIRTY: "dirty head", SEALED: "sealed", ACTIVE: "active"}
MOST_WARNINGS = 50
MOST_GROUPS = 20
MOST_DELETIONS = 20
MOST_LINKS = 24
FOLDED_TOPICS = 20
"""A page of more topics has their partitions folded."""
_NO_LIMIT = ("-1", str(2**63 - 1))


def page(
    uri: str,
    topics: Sequence[tuple[Snapshot, TopicConfig]],
    now_ms: int,
    *,
    kafka: bool = False,
    served: bool = False,
    warnings: Sequence[str] = (),
    lags: Sequence[GroupLag] = (),
    grown: Mapping[str, Sequence[Size]] = MappingProxyType({}),
    part: TopicsShown | None = None,
) -> str:
    """The page of `topics` at `now_ms`. The same snapshots, settings and time give the same text.

    `kafka`: the topics are in Kafka's own directories, where their settings are unknown. `served`: the page has links
    to the records, which a server answers. `warnings`: what is wrong with the log directory as a whole. `lags`: the
    positions of the groups that read these topics. `grown`: sizes of topics over time, oldest first. `part`: which part
    of the log directory `topics` are, None where they are all that is asked for.
    """
    most_blocks = blocks_a_strip(sum(snapshot.partitions.num_rows for snapshot, _ in topics))
    views = [topic_view(snapshot, config, now_ms, most_blocks) for snapshot, config in topics]
    names = [f"{topic.described['topic']}-{view.numbers['partition']}" for topic in views for view in topic.partitions]
    return _page(
        uri,
        [TopicLine.of(view) for view in views],
        now_ms,
        kafka=kafka,
        served=served,
        warnings=warnings,
        lags=lags,
        topics=views,
        grown=grown,
        part=part,
        shown=f"This page has {names[0]} to {names[-1]}" if names else "This page has no partition",
        topic_link=lambda topic: f"#topic:{topic}",
        partition_link=lambda topic, partition: f"#{topic}-{partition}",
        merged=any(shown.block.segments > 1 for topic in views for view in topic.partitions for shown in view.strip),
    )


def topics_page(
    uri: str,
    lines: Sequence[TopicLine],
    now_ms: int,
    *,
    kafka: bool,
    warnings: Sequence[str],
    lags: Sequence[GroupLag],
    grown: Mapping[str, Sequence[Size]],
    part: TopicsShown | None,
) -> str:
    """The first page of a log directory of many partitions: the table of topics, which leads to a page for each."""
    ends = f"{lines[0].topic} to {lines[-1].topic}" if lines else "no topic"
    return _page(
        uri,
        lines,
        now_ms,
        kafka=kafka,
        served=True,
        warnings=warnings,
        lags=lags,
        topics=[],
        grown=grown,
        part=part,
        shown=f"This page has {ends}",
        topic_link=lambda topic: link("/topic", topic=topic),
        partition_link=lambda topic, partition: link("/topic", topic=topic, partition=partition),
        merged=False,
    )


def _page(
    uri: str, lines: Sequence[TopicLine], now_ms: int, *, warnings: Sequence[str], lags: Sequence[GroupLag], **more: Any
) -> str:
    """`more`: what the template has besides."""
    groups = _groups(lags)
    topic_lags = _topic_lags(groups)
    deletions = [(line.topic, deletion) for line in lines for deletion in line.deletions]
    template = environment().get_template("page.html")
    return template.render(
        uri=uri,
        lines=lines,
        now_ms=now_ms,
        totals=_totals(lines),
        due=_due(lines),
        warnings=[
            *(("", 0, text) for text in warnings),
            *((line.topic, partition, text) for line in lines for partition, text in line.warnings),
        ],
        groups=groups,
        topic_lags=topic_lags,
        shared_facts=shared_facts(lines, topic_lags),
        deletions=sorted(deletions, key=lambda named: (named[1].at_ms, named[0])),
        script=page_file("page.js"),
        script_hash=script_hash(),
        **more,
    )


def _totals(lines: Sequence[TopicLine]) -> list[tuple[str, str]]:
    """(what is counted, how much of it there is) of all topics of the page. A single topic is not counted."""
    numbers = [("topic", len(lines))] if len(lines) != 1 else []
    numbers += [
        ("partition", sum(line.partitions for line in lines)),
        ("sealed segment", sum(line.sealed for line in lines)),
        ("chunk", sum(line.chunks for line in lines)),
        ("record", sum(line.records for line in lines)),
    ]
    sizes = [("in .log files", sum(line.size_bytes for line in lines))]
    removed_bytes = sum(line.removed_bytes for line in lines)
    if removed_bytes:
        sizes.append(("wait for vacuum", removed_bytes))
    totals = [(plural(number, noun).partition(" ")[2], count(number)) for noun, number in numbers]
    return totals + [(label, human_bytes(size)) for label, size in sizes]


def _due(lines: Sequence[TopicLine]) -> str:
    """The jobs that have work now, and in how many partitions."""
    partitions: Counter[str] = Counter()
    for line in lines:
        partitions.update(line.due)
    return " · ".join(f"{job} {count(partitions[job])}" for job in JOBS if partitions[job])


def _topic_lags(groups: Sequence[tuple[str, str, int, int]]) -> dict[str, int]:
    """{topic: how far the last of its groups is behind}: retention takes records from that one first."""
    lags: dict[str, int] = {}
    for _, topic, lag, _ in groups:
        lags[topic] = max(lag, lags.get(topic, 0))
    return lags


def script_hash(name: str = "page.js") -> str:
    """The source of a page's only script, as a Content-Security-Policy names it."""
    digest = hashlib.sha256(f"\n{page_file(name)}".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def page_file(name: str) -> str:
    """The text of a file of this room."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """The templates of this room, and what they call."""
    templates = Environment(
        loader=FunctionLoader(page_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "age": _age,
        "count": count,
        "iso": iso,
        "line": _line,
        "moment": moment,
        "plural": plural,
        "ratio": ratio,
        "relative": relative,
        "setting_text": _setting_text,
        "size": human_bytes,
        "strip_label": _strip_label,
        "when": when,
    }
    templates.globals |= {
        "FOLDED_TOPICS": FOLDED_TOPICS,
        "MOST_DELETIONS": MOST_DELETIONS,
        "MOST_GROUPS": MOST_GROUPS,
        "MOST_LINKS": MOST_LINKS,
        "MOST_WARNINGS": MOST_WARNINGS,
        "WORDS": _WORDS,
        "link": link,
        "style": page_file("page.css"),
        "version": __version__,
    }
    return templates


def link(path: str, **query: str | int) -> str:
    return f"{path}?{urlencode(query)}"


def _groups(lags: Sequence[GroupLag]) -> list[tuple[str, str, int, int]]:
    """(group, topic, how far it is behind there, when it committed last), the furthest first."""
    by_topic: dict[tuple[str, str], list[GroupLag]] = {}
    for lag in lags:
        by_topic.setdefault((lag.group, lag.topic), []).append(lag)
    rows = [
        (group, topic, sum(lag.lag for lag in mine), max(lag.committed_ms for lag in mine))
        for (group, topic), mine in by_topic.items()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[:2]))


def _line(sizes: Sequence[Size]) -> str:
    """Bytes over time as the path of a step line of 120 by 24: what a commit left stays until the next."""
    first_ms = sizes[0].committed_ms
    span_ms = max(1, sizes[-1].committed_ms - first_ms)  # commits of one millisecond are all at the left edge
    most_bytes = max(size.log_bytes for size in sizes) or 1
    path = ""
    for size in sizes:
        x = 118 * (size.committed_ms - first_ms) / span_ms + 1
        y = 23 - 22 * size.log_bytes / most_bytes
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return path


def _setting_text(name: str, value: str) -> str:
    if value in _NO_LIMIT:
        return "no limit"
    if name.endswith(".ms") and value.isdigit():
        return f"{value} ({duration(int(value))})"
    if name.endswith(".bytes") and value.isdigit():
        return f"{value} ({human_bytes(int(value))})"
    return value


def _strip_label(strip: Sequence[BlockView]) -> str:
    """Text of the strip for screen readers: 3 clean tail segments, 20.0 KiB; …"""
    texts = []
    for kind, word in _WORDS.items():
        mine = [shown.block for shown in strip if shown.block.kind == kind]
        if mine:
            size = human_bytes(sum(block.log_bytes for block in mine))
            texts.append(f"{plural(sum(block.segments for block in mine), f'{word} segment')}, {size}")
    return "; ".join(texts) or "no segments"


def _age(strip: Sequence[BlockView], now_ms: int) -> str:
    """The range of the timestamps of the partition's records."""
    oldest = min((shown.first_ms for shown in strip if shown.first_ms >= 0), default=-1)
    newest = max((shown.last_ms for shown in strip), default=-1)
    if oldest < 0:
        return "none has a time" if strip else "none"
    return f"from {when(oldest, now_ms)} to {when(newest, now_ms)}"
