"""The pages of records as HTML: a list with its cursors, a single record, an error. Every value is escaped."""

from __future__ import annotations

from html import escape
from urllib.parse import urlencode

from spark_segments import __version__
from spark_segments.cli.page.browse import RecordPage, RecordRow, Shown, pretty
from spark_segments.cli.page.render import page_file, page_template
from spark_segments.cli.page.words import count, iso, moment
from spark_segments.quantities import human_bytes, plural


def records_page(uri: str, page: RecordPage, now_ms: int, notes: list[str]) -> str:
    """The list of records, with links to the pages before and after."""
    names = ("newest", "earlier", "later", "oldest")
    starts = (None, page.previous_offset, page.next_offset, page.log_start_offset)
    links = []
    for name, start in zip(names, starts, strict=True):
        if name == "newest" or start is not None:
            links.append(f'<a href="{_link(page, start, keep=name == "later")}">{name}</a>')
        else:
            links.append(f"<span>{name}</span>")
    return page_template("records.html").substitute(
        **_frame(uri, page, now_ms),
        found=" ".join(escape(text) for text in [_found(page), *notes]),
        pages=" ".join(links),
        offset=page.start_offset,
        table=_table(page),
    )


def record_page(uri: str, page: RecordPage, now_ms: int) -> str:
    """A single record with all that it has, its JSON on several lines."""
    [row] = page.rows
    parts = [
        ("time", escape(_time(row))),
        ("key", _whole(row.key)),
        ("value", _whole(row.value)),
        *((f"header {escape(name)}", _whole(value)) for name, value in row.headers),
    ]
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in parts)
    back = f'<a href="{_link(page, page.start_offset)}">the records from here on</a>'
    return page_template("records.html").substitute(
        **_frame(uri, page, now_ms),
        found=f"Record at offset {count(row.offset)}.",
        pages=back,
        offset=row.offset,
        table=f'<dl class="record">{body}</dl>',
    )


def error_page(title: str, text: str) -> str:
    """A page that says why there is no other."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>segments page</title>'
        f"<style>\n{page_file('page.css')}</style></head><body><main><h1>{escape(title)}</h1><p>{escape(text)}</p>"
        '<p><a href="/">The log directory</a></p></main></body></html>\n'
    )


def _frame(uri: str, page: RecordPage, now_ms: int) -> dict[str, str]:
    """The values of the template that all pages of records have."""
    options = "".join(
        f"<option{' selected' if number == page.partition else ''}>{number}</option>" for number in page.partitions
    )
    return {
        "uri": escape(uri),
        "name": escape(f"{page.topic}-{page.partition}"),
        "topic": escape(page.topic),
        "partitions": options,
        "find": escape(page.find),
        "range": f"offsets {count(page.log_start_offset)} to {count(page.log_end_offset)} (exclusive)",
        "now": moment(now_ms),
        "version": escape(__version__),
        "style": page_file("page.css"),
    }


def _found(page: RecordPage) -> str:
    if not page.find:
        return plural(len(page.rows), "record") + f" from offset {count(page.start_offset)}."
    text = f"{plural(len(page.rows), 'record')} found in {human_bytes(page.looked_at_bytes)}"
    if page.next_offset is None:
        return f"{text}; that is all up to the log end."
    if page.stopped:
        return f"{text}, up to offset {count(page.next_offset)}: a request looks no further. Later goes on."
    return f"{text}. Later goes on at offset {count(page.next_offset)}."


def _table(page: RecordPage) -> str:
    if not page.rows:
        return "<p>No records here.</p>"
    rows = "".join(_row(page, row) for row in page.rows)
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("Offset", "Time", "Key", "Value"))
    return f'<table class="records"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _row(page: RecordPage, row: RecordRow) -> str:
    query = {"topic": page.topic, "partition": page.partition, "offset": row.offset}
    link = f'<a href="/record?{escape(urlencode(query))}">{count(row.offset)}</a>'
    headers = f" <small>{plural(len(row.headers), 'header')}</small>" if row.headers else ""
    return (
        f'<tr><td class="n">{link}</td><td>{_time(row)}</td><td>{_cell(row.key)}</td>'
        f"<td>{_cell(row.value)}{headers}</td></tr>"
    )


def _time(row: RecordRow) -> str:
    if row.timestamp_ms < 0:
        return "none"
    return iso(row.timestamp_ms).replace("T", " ").removesuffix("Z") or "after the year 9999"


def _cell(shown: Shown) -> str:
    note = f" <small>{_note(shown)}</small>" if _note(shown) else ""
    return f'<code class="{shown.kind}">{escape(shown.text)}{"…" if shown.cut else ""}</code>{note}'


def _whole(shown: Shown) -> str:
    note = f"<small>{_note(shown)}</small>" if _note(shown) else ""
    return f'<pre class="{shown.kind}" tabindex="0">{escape(pretty(shown))}{"…" if shown.cut else ""}</pre>{note}'


def _note(shown: Shown) -> str:
    if shown.kind == "binary":
        return f"{plural(shown.size_bytes, 'byte')}, no text"
    return human_bytes(shown.size_bytes) if shown.cut else ""


def _link(page: RecordPage, offset: int | None, *, keep: bool = True) -> str:
    query: dict[str, str | int] = {"topic": page.topic, "partition": page.partition}
    if offset is not None:
        query["offset"] = offset
    if page.find and keep:
        query["find"] = page.find
    return escape(f"/records?{urlencode(query)}")
