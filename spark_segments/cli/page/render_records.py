"""The pages of records as HTML: a list with its cursors, a single record, an error."""

from __future__ import annotations

from typing import Any

from spark_segments.cli.page.browse import RecordPage, RecordRow, Shown, pretty
from spark_segments.cli.page.render import environment, link
from spark_segments.cli.page.words import count, iso
from spark_segments.quantities import human_bytes, plural


def records_page(uri: str, page: RecordPage, now_ms: int, notes: list[str]) -> str:
    """The list of records, with links to the pages before and after."""
    starts = {"earlier": page.previous_offset, "later": page.next_offset, "oldest": page.log_start_offset}
    links = [("newest", _records_link(page, None, keep=False))]
    for name, start in starts.items():
        links.append((name, "" if start is None else _records_link(page, start, keep=name == "later")))
    return _records(uri, page, now_ms, links=links, record=None, found=_found(page), notes=notes)


def record_page(uri: str, page: RecordPage, now_ms: int) -> str:
    """A single record with all that it has, its JSON on several lines."""
    links = [("the records from here on", _records_link(page, page.start_offset))]
    return _records(uri, page, now_ms, links=links, record=page.rows[0])


def error_page(title: str, text: str) -> str:
    """A page that says why there is no other."""
    return environment().get_template("error.html").render(title=title, text=text)


def _records(uri: str, page: RecordPage, now_ms: int, **more: Any) -> str:
    name = f"{page.topic}-{page.partition}"
    return environment().get_template("records.html").render(uri=uri, page=page, name=name, now_ms=now_ms, **more)


def _found(page: RecordPage) -> str:
    if not page.find:
        return plural(len(page.rows), "record") + f" from offset {count(page.start_offset)}."
    text = f"{plural(len(page.rows), 'record')} found in {human_bytes(page.looked_at_bytes)}"
    if page.next_offset is None:
        return f"{text}; that is all up to the log end."
    if page.stopped:
        return f"{text}, up to offset {count(page.next_offset)}: a request looks no further. Later goes on."
    return f"{text}. Later goes on at offset {count(page.next_offset)}."


def _time(row: RecordRow) -> str:
    if row.timestamp_ms < 0:
        return "none"
    return iso(row.timestamp_ms).replace("T", " ").removesuffix("Z") or "after the year 9999"


def _note(shown: Shown) -> str:
    if shown.kind == "binary":
        return f"{plural(shown.size_bytes, 'byte')}, no text"
    return human_bytes(shown.size_bytes) if shown.cut else ""


def _records_link(page: RecordPage, offset: int | None, *, keep: bool = True) -> str:
    query: dict[str, str | int] = {"topic": page.topic, "partition": page.partition}
    if offset is not None:
        query["offset"] = offset
    if page.find and keep:
        query["find"] = page.find
    return link("/records", **query)


environment().filters |= {"note": _note, "pretty": pretty, "record_time": _time}
