"""The page as one HTML text, made from the templates, style and script beside this module, with values escaped."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from types import MappingProxyType
from urllib.parse import urlencode

from spark_segments import __version__
from spark_segments.cli.page.log_state import TopicsShown
from spark_segments.cli.page.strip import ACTIVE, CLEAN, DIRTY, SEALED, Block, blocks_a_strip
from spark_segments.cli.page.view import JOBS, BlockView, PartitionView, StepView, TopicView, topic_view
from spark_segments.cli.page.words import count, duration, iso, moment, ratio, relative, when
from spark_segments.config import TopicConfig
from spark_segments.face.history import Size
from spark_segments.log.groups.lag import GroupLag
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.quantities import human_bytes, plural

_WORDS = {CLEAN: "clean tail", DIRTY: "dirty head", SEALED: "sealed", ACTIVE: "active"}
MOST_WARNINGS = 50
MOST_GROUPS = 20
MOST_DELETIONS = 20
MOST_LINKS = 24
_NO_LIMIT = ("-1", str(2**63 - 1))
_KAFKA_NOTE = (
    "This is a directory of Kafka's: it is only read. It does not carry its topics' settings, so what goes when is "
    "told by Kafka's defaults, or by the broker's server.properties where --defaults names it."
)


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
    merged = any(shown.block.segments > 1 for topic in views for one in topic.partitions for shown in one.strip)
    return page_template("page.html").substitute(
        uri=escape(uri),
        now=moment(now_ms),
        now_iso=iso(now_ms),
        note=f'<p class="note">{escape(_KAFKA_NOTE)}</p>' if kafka else "",
        totals=_totals(views),
        part="" if part is None else _part(views, part, served),
        merged="; hairlines beside each other are one block" if merged else "",
        warnings=_warnings(views, warnings),
        groups=_groups(lags, now_ms) + _growth(grown, now_ms) + _deletions(views, now_ms),
        topics="\n".join(_topic(topic, now_ms, kafka, served) for topic in views) or "<p>There are no topics.</p>",
        command="segments page" if served else "segments describe --html",
        version=escape(__version__),
        style=page_file("page.css"),
        script=page_file("page.js"),
        script_hash=script_hash(),
    )


def script_hash() -> str:
    """The source of the page's only script, as a Content-Security-Policy names it."""
    digest = hashlib.sha256(f"\n{page_file('page.js')}".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def page_file(name: str) -> str:
    """The text of a file of this room."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def page_template(name: str) -> Template:
    """A file of this room as a template."""
    return Template(page_file(name))


def _part(topics: Sequence[TopicView], part: TopicsShown, served: bool) -> str:
    """What the page does not show, and the way there."""
    names = [f"{topic.described['topic']}-{one.numbers['partition']}" for topic in topics for one in topic.partitions]
    text = f"This page has {names[0]} to {names[-1]}" if names else "This page has no partition"
    if not served:
        text += f", a part of {plural(part.topics_there, 'topic')}. segments page LOG_DIR shows all of them."
        return f'<p class="note">{escape(text)}</p>'
    text += f". The log directory has {plural(part.topics_there, 'topic')}, deleted ones included."
    links = []
    if part.begin.topic or part.begin.partition:
        links.append('<a href="/">from the first</a>')
    if part.next is not None:
        query = escape(urlencode({"topic": part.next.topic, "partition": part.next.partition}))
        links.append(f'<a href="/?{query}">further</a>')
    form = (
        '<form action="/"><label>From the topic <input type="search" name="topic" autocomplete="off"></label> '
        "<button>Show</button></form>"
    )
    return f'<div class="note further"><p>{escape(text)} {" · ".join(links)}</p>{form}</div>'


def _totals(topics: Sequence[TopicView]) -> str:
    partitions = [one for topic in topics for one in topic.partitions]
    shown = [("topics", count(len(topics)), ""), ("partitions", count(len(partitions)), "")]
    for label, name in (("sealed segments", "segments"), ("chunks", "chunks"), ("records", "records")):
        shown.append((label, count(sum(one.numbers[name] for one in partitions)), ""))
    shown.append(("in .log files", human_bytes(sum(one.numbers["size_bytes"] for one in partitions)), ""))
    due = Counter(step.job for one in partitions for step in one.due)
    if due:
        jobs = " · ".join(f"{job} {count(due[job])}" for job in JOBS if due[job])
        shown.append(("partitions with work for a job now", jobs, ' class="due"'))
    return "\n".join(f"<div{kind}><dt>{label}</dt><dd>{text}</dd></div>" for label, text, kind in shown)


def _warnings(topics: Sequence[TopicView], warnings: Sequence[str]) -> str:
    """What somebody should look into, with links to the partitions; a sentence where there is nothing."""
    lines = [f"<li>{escape(text)}</li>" for text in warnings]
    for topic in topics:
        for one in topic.partitions:
            name = escape(f"{topic.described['topic']}-{one.numbers['partition']}")
            lines += [f'<li><a href="#{name}">{name}</a>: {escape(text)}</li>' for text in one.warnings]
    if not lines:
        return '<p class="fine">Nothing is late, and no fault is known.</p>'
    more = f"<li>… and {count(len(lines) - MOST_WARNINGS) + ' more'}</li>" if len(lines) > MOST_WARNINGS else ""
    return f'<section class="warnings"><h2>To look into</h2><ul>{"".join(lines[:MOST_WARNINGS])}{more}</ul></section>'


def _groups(lags: Sequence[GroupLag], now_ms: int) -> str:
    """The groups and how far they are behind in each topic, the furthest first; "" where there is none."""
    by_topic: dict[tuple[str, str], list[GroupLag]] = {}
    for one in lags:
        by_topic.setdefault((one.group, one.topic), []).append(one)
    furthest = sorted(by_topic.items(), key=lambda item: (-sum(one.lag for one in item[1]), item[0]))
    rows = []
    for (group, topic), mine in furthest[:MOST_GROUPS]:
        newest = max(one.committed_ms for one in mine)
        rows.append(
            f'<tr><td>{escape(group)}<td>{escape(topic)}<td class="n">{count(sum(one.lag for one in mine))}'
            f'<td><time datetime="{iso(newest)}">{relative(newest, now_ms)}</time></tr>'
        )
    if not rows:
        return ""
    more = f"<p>… and {count(len(furthest) - MOST_GROUPS)} more</p>" if len(furthest) > MOST_GROUPS else ""
    head = '<th scope="col">Group<th scope="col">Topic<th scope="col" class="n">Lag<th scope="col">Last commit'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<section class="groups"><h2>Groups</h2>{table}{more}</section>'


def _growth(grown: Mapping[str, Sequence[Size]], now_ms: int) -> str:
    """The bytes of topics over time as lines, and what changed since the line begins; "" where there is none."""
    rows = []
    for topic, several in grown.items():
        first, last = several[0], several[-1]
        change = last.records - first.records
        changed = f"{'+' if change >= 0 else '−'}{count(abs(change))}"
        rows.append(
            f'<tr><td>{escape(topic)}<td>{_line(several)}<td class="n">{changed}'
            f'<td class="n">{human_bytes(first.log_bytes)} → {human_bytes(last.log_bytes)}'
            f'<td><time datetime="{iso(first.committed_ms)}">{relative(first.committed_ms, now_ms)}</time></tr>'
        )
    if not rows:
        return ""
    head = (
        '<th scope="col">Topic<th scope="col">Bytes<th scope="col" class="n">Records<th scope="col" class="n">Size'
        '<th scope="col">Since'
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<section class="groups growth"><h2>Growth</h2>{table}</section>'


def _deletions(topics: Sequence[TopicView], now_ms: int) -> str:
    """What retention takes next, of all topics, the soonest first; "" where it takes nothing."""
    each = [(escape(topic.described["topic"]), one) for topic in topics for one in topic.deletions]
    soonest = sorted(each, key=lambda item: (item[1].at_ms, item[0]))
    rows = [
        f'<tr><td><a href="#topic:{topic}">{topic}</a>'
        f'<td><time datetime="{iso(one.at_ms)}">{relative(one.at_ms, now_ms)}</time>'
        f'<td class="n">{human_bytes(one.log_bytes)}<td class="n">{count(one.records)}'
        f'<td class="n">{count(one.segments)}<td>{escape(one.rule)}</tr>'
        for topic, one in soonest[:MOST_DELETIONS]
    ]
    if not rows:
        return ""
    more = f"<p>… and {count(len(soonest) - MOST_DELETIONS)} more</p>" if len(soonest) > MOST_DELETIONS else ""
    head = (
        '<th scope="col">Topic<th scope="col">From<th scope="col" class="n">Size<th scope="col" class="n">Records'
        '<th scope="col" class="n">Segments<th scope="col">By'
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<section class="groups deletions"><h2>What retention takes next</h2>{table}{more}</section>'


def _line(several: Sequence[Size]) -> str:
    """Bytes over time as a step line of 120 by 24: what a commit left stays until the next."""
    first, last = several[0].committed_ms, several[-1].committed_ms
    most = max(one.log_bytes for one in several) or 1
    path = ""
    for one in several:
        x, y = 118 * (one.committed_ms - first) / max(1, last - first) + 1, 23 - 22 * one.log_bytes / most
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return f'<svg viewBox="0 0 120 24" aria-hidden="true"><path d="{path}"/></svg>'


def _records_of(topic: str, partitions: Sequence[int]) -> str:
    """Links to the records of a topic's partitions."""
    links = [
        f'<a href="/records?{escape(urlencode({"topic": topic, "partition": number}))}">'
        f'<span class="vh">Records of {escape(topic)}-</span>{number}</a>'
        for number in partitions[:MOST_LINKS]
    ]
    more = " …" if len(partitions) > MOST_LINKS else ""
    return f'<p class="to-records">Look at the records of partition {" ".join(links)}{more}</p>' if links else ""


def _topic(topic: TopicView, now_ms: int, kafka: bool, served: bool) -> str:
    described = topic.described
    rows = [one.numbers for one in topic.partitions]
    facts = [
        plural(len(rows), "partition"),
        human_bytes(sum(row["size_bytes"] for row in rows)),
        plural(sum(row["records"] for row in rows), "record"),
        f'version <data class="version" value="{described["version"]}">{count(described["version"])}</data>',
    ]
    shared = described["shared"]
    if shared["objects"]:
        facts.append(f"{plural(shared['objects'], 'shared object')} with {human_bytes(shared['size_bytes'])} of it")
    policy = described["config"]["cleanup.policy"]
    least = float(described["config"]["min.cleanable.dirty.ratio"])
    largest = max((row["size_bytes"] for row in rows), default=0)
    return page_template("topic.html").substitute(
        topic=escape(described["topic"]),
        topic_id=escape(described["topic_id"]),
        policy=escape(policy),
        policy_text=escape(f"cleanup.policy={policy}{' by default' if kafka else ''}"),
        records=_records_of(described["topic"], [row["partition"] for row in rows]) if served else "",
        facts=" · ".join(facts),
        settings="\n".join(_setting(*setting) for setting in topic.settings),
        partitions="".join(
            _partition(described["topic"], one, largest, least, now_ms, served) for one in topic.partitions
        ),
    )


def _setting(name: str, value: str, source: str) -> str:
    text = value
    if value in _NO_LIMIT:
        text = "no limit"
    elif name.endswith(".ms") and value.isdigit():
        text = f"{value} ({duration(int(value))})"
    elif name.endswith(".bytes") and value.isdigit():
        text = f"{value} ({human_bytes(int(value))})"
    kind = "" if source == "default" else ' class="own"'
    told = "" if source == "topic" else f" <small>{escape(source)}</small>"
    return f'<div{kind}><dt>{escape(name)}</dt><dd><data value="{escape(value)}">{escape(text)}</data>{told}</dd></div>'


def _partition(topic: str, view: PartitionView, largest: int, least: float, now_ms: int, served: bool) -> str:
    numbers, next_step = view.numbers, view.next_step
    return page_template("partition.html").substitute(
        {name: value for name, value in numbers.items() if value is not None},
        name=escape(f"{topic}-{numbers['partition']}"),
        next_ms="" if next_step is None else next_step.at_ms,
        due="data-due" if view.due else "",
        share=f"{numbers['size_bytes'] / largest:.4f}" if largest else "1",
        strip_label=escape(_strip_label(view.strip)),
        empty="" if view.strip else " empty",
        blocks="".join(_block(shown.block) for shown in view.strip) or "no segments",
        size=human_bytes(numbers["size_bytes"]),
        segments_text=count(numbers["segments"]),
        chunks_text=count(numbers["chunks"]),
        records_text=count(numbers["records"]),
        start_text=count(numbers["log_start_offset"]),
        end_text=count(numbers["log_end_offset"]),
        dirty_ratio=_dirty_ratio(numbers["dirty_ratio"], least),
        next=_next(view.due, next_step, now_ms, is_warned=bool(view.warnings)),
        warnings="".join(f'<dt>to look into</dt><dd class="warning">{escape(text)}</dd>' for text in view.warnings),
        browse=_browse(topic, numbers["partition"]) if served else "",
        age=_age(view.strip, now_ms),
        steps="\n".join(_step(step) for step in view.steps),
        rows="\n".join(_row(shown, numbers["log_start_offset"], now_ms) for shown in view.strip),
    )


def _strip_label(strip: Sequence[BlockView]) -> str:
    """Text of the strip for screen readers: 3 clean tail segments, 20.0 KiB; …"""
    texts = []
    for kind, word in _WORDS.items():
        mine = [shown.block for shown in strip if shown.block.kind == kind]
        if mine:
            size = human_bytes(sum(block.log_bytes for block in mine))
            texts.append(f"{plural(sum(block.segments for block in mine), f'{word} segment')}, {size}")
    return "; ".join(texts) or "no segments"


def _block(block: Block) -> str:
    if block.clean_share:
        share = f"flex-grow:{block.log_bytes};--clean-share:{100 * block.clean_share:.2f}%"
        return f'<i class="part-clean" style="{share}"></i>'
    return f'<i class="{block.kind}" style="flex-grow:{block.log_bytes}"></i>'


def _dirty_ratio(value: float | None, least: float) -> str:
    """The dirty ratio, with a mark at the ratio from which on the partition is compacted."""
    if value is None:
        return "–"
    meter = f'<span class="meter" style="--ratio:{value:.3f};--least:{least:g}"></span>'
    return f'{meter}<data class="dirty_ratio" value="{value!r}">{ratio(value)}</data>'


def _browse(topic: str, partition: int) -> str:
    """A link to the records of a partition."""
    query = escape(urlencode({"topic": topic, "partition": partition}))
    name = escape(f"{topic}-{partition}")
    return f'<p class="browse"><a href="/records?{query}">Look at the records of {name}</a></p>'


def _next(due: Sequence[StepView], next_step: StepView | None, now_ms: int, *, is_warned: bool) -> str:
    mark = '<span class="warning">▲<span class="vh"> to look into: </span></span> ' if is_warned else ""
    if due:
        return f"{mark}now: " + ", ".join(f'<strong class="now">{step.job}</strong>' for step in due)
    if next_step is None:
        return f"{mark}–"
    at = f'<time datetime="{iso(next_step.at_ms)}">{relative(next_step.at_ms, now_ms)}</time>'
    return f"{mark}{next_step.job} {at}"


def _age(strip: Sequence[BlockView], now_ms: int) -> str:
    """The range of the timestamps of the partition's records."""
    oldest = min((shown.first_ms for shown in strip if shown.first_ms >= 0), default=-1)
    newest = max((shown.last_ms for shown in strip), default=-1)
    if oldest < 0:
        return "none has a time" if strip else "none"
    return f"from {when(oldest, now_ms)} to {when(newest, now_ms)}"


def _step(step: StepView) -> str:
    kind = ' class="due"' if step.due else ""
    return f"<dt>{step.job}</dt><dd{kind}>{escape(step.text)}</dd>"


def _row(view: BlockView, log_start: int, now_ms: int) -> str:
    block = view.block
    kind = _WORDS[block.kind]
    if block.clean_share:
        kind = f"{_WORDS[CLEAN]} to dirty head"
    if block.segments > 1:
        kind = f"{count(block.segments)} × {kind}"
    offsets = f"{count(view.base_offset)} – {count(view.next_offset - 1)}"
    if view.next_offset == view.base_offset:
        offsets = f"none from {count(view.base_offset)}"
    elif view.base_offset < log_start < view.next_offset:
        offsets += f" (log start {count(log_start)})"
    records = count(view.records)
    if view.tombstones:
        records += f" ({plural(view.tombstones, 'tombstone')})"
    newest = "–" if view.last_ms < 0 else when(view.last_ms, now_ms)
    file = escape((view.path or "").rpartition("/")[2])
    return (
        f'<tr><td><i class="{block.kind}"></i>{kind}<td>{offsets}<td class="n">{records}'
        f'<td class="n">{human_bytes(block.log_bytes)}<td>{newest}<td>{view.goes}<td>{file}</tr>'
    )
