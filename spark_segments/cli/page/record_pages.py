"""Pages of records as HTML: the list, a single record, what explains it, an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from spark_segments.cli.page.browse import MOST_TOGETHER, Cursor, RecordPage, RecordRow, Shown
from spark_segments.cli.page.render import environment, link, page_file
from spark_segments.quantities import human_bytes, iso, plural

_EMPTY_FIELDS = MappingProxyType({"offset": "", "time": ""})


def records_page(
    uri: str, page: RecordPage, now_ms: int, notes: list[str], fields: Mapping[str, str] = _EMPTY_FIELDS
) -> str:
    """The list of records, with links to the pages before and after. Its script lets a search go on.

    `fields`: the texts in the form's fields `offset` and `time`.
    """
    oldest = {number: start for number, (start, _) in page.bounds.items()}
    links = [
        ("newest", _records_link(page)),
        ("newer", _records_link(page, after=page.newer) if page.newer else ""),
        ("older", _records_link(page, before=page.older) if page.older else ""),
        ("oldest", _records_link(page, after=oldest) if page.older else ""),
    ]
    going_on = _records_link(page, before=page.lower) if page.filter and page.stopped and page.older else ""
    script = page_file("records.js") if going_on else ""
    return _records(
        uri,
        page,
        now_ms,
        links=links,
        record=None,
        found=_found(page),
        notes=notes,
        going_on=going_on,
        script=script,
        fields=fields,
    )


def record_page(uri: str, page: RecordPage, now_ms: int, *, kafka: bool) -> str:
    """A single record with all that it has, its JSON on several lines."""
    [row] = page.rows
    query: dict[str, str | int] = {"topic": page.topic, "partition": row.partition, "offset": row.offset}
    links = [("the records up to here", link("/records", **query))]
    if not kafka:
        links.append(("why it is still here, and when it goes", link("/explain", **query)))
    return _records(uri, page, now_ms, links=links, record=row)


def explain_page(topic: str, partition: int, offset: int, text: str) -> str:
    """What `segments explain` says of a record."""
    trail = [("the record", link("/record", topic=topic, partition=partition, offset=offset))]
    title = f"{topic}-{partition}, offset {offset:,}"
    return environment().get_template("error.html").render(title=title, text="", lines=text, trail=trail)


def error_page(title: str, text: str, topic: str = "", partition: int = 0) -> str:
    """A page that says why there is no other. `topic`: whose records it leads to."""
    records = link("/records", topic=topic, partition=partition)
    trail = [(f"records of {topic}-{partition}", records)] if topic else []
    return environment().get_template("error.html").render(title=title, text=text, lines="", trail=trail)


def _records(uri: str, page: RecordPage, now_ms: int, **more: Any) -> str:
    name = page.topic if page.partition is None else f"{page.topic}-{page.partition}"
    records = sum(end - start for start, end in page.bounds.values())
    parts = {"notes": [], "going_on": "", "script": "", "found": ("", ""), "fields": _EMPTY_FIELDS} | more
    return (
        environment()
        .get_template("records.html")
        .render(uri=uri, page=page, name=name, now_ms=now_ms, offsets=records, together=MOST_TOGETHER, **parts)
    )


def _found(page: RecordPage) -> tuple[str, str]:
    """How many records there are, and how far the page looked."""
    if not page.filter:
        return plural(len(page.rows), "record"), "newest first."
    text = f"{plural(len(page.rows), 'record')} found"
    index = ""
    if page.coverage is not None:
        figures = page.coverage.to_dict()
        index = f" The index of keys has {figures['indexed_offsets']:,} offsets, a search goes through "
        index += f"{figures['scanned_offsets']:,}."
        if figures["index_error"]:
            index += " The index cannot be read."
    if page.older is None:
        return text, f"; that is all down to the log start.{index}"
    passed = f"in the last {100 * page.share:.0f} % of the log" if page.newer is None or page.stopped else "here"
    return text, f", {passed}, {human_bytes(page.looked_at_bytes)} in this request. Older goes on.{index}"


def _time(row: RecordRow) -> str:
    if row.timestamp_ms < 0:
        return "none"
    return iso(row.timestamp_ms).replace("T", " ") or "after the year 9999"


def _note(shown: Shown) -> str:
    if shown.kind == "binary":
        return f"{plural(shown.size_bytes, 'byte')}, no text"
    return human_bytes(shown.size_bytes) if shown.cut else ""


def _records_link(page: RecordPage, **cursors: Cursor) -> str:
    query: dict[str, str | int] = {"topic": page.topic}
    if page.partition is not None:
        query["partition"] = page.partition
    texts = {name: ",".join(f"{number}:{offset}" for number, offset in at.items()) for name, at in cursors.items()}
    return link("/records", **query, **texts, **page.filter.query())


def pretty(shown: Shown) -> str:
    """JSON on several lines; any other text unchanged."""
    if shown.kind != "json" or shown.cut:
        return shown.text
    try:
        value: Any = json.loads(shown.text)
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:  # nested so deeply that its lines would be longer than the page is wide
        return shown.text


environment().filters |= {"note": _note, "pretty": pretty, "record_time": _time}
