"""Records of a partition for the page's browser: a bounded piece of the log at a time, with a cursor to the next; and
their pages as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.cli.page.render import environment, link
from spark_segments.cli.page.words import count, iso
from spark_segments.cli.records.value_text import textual
from spark_segments.log import offsets_for_times
from spark_segments.quantities import human_bytes, plural
from spark_segments.values.batches import Columns

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir

RECORDS_A_PAGE = 50
MOST_BYTES = 64 << 20
"""A filter looks at so many bytes of keys, values and headers in a request, and then gives a cursor."""

SHOWN_BYTES = 600
WHOLE_BYTES = 1 << 20
"""So much of a value is shown in the list, and on the page of a single record."""

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_HEX_BYTES = 48


@dataclass(frozen=True, slots=True)
class Shown:
    """A key or value as text. `kind`: text, json, binary (a hex dump) or null. `cut`: there is more than is shown."""

    text: str
    kind: str
    size_bytes: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record. `timestamp_ms`: -1 where it has none."""

    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records of a partition from `start_offset` on.

    `next_offset`: the offset at which the next page begins; None at the log end. `looked_at_bytes`: how much was
    looked at. `stopped`: the limit of bytes, and not the number of records or the log end, ended the page.
    """

    topic: str
    partition: int
    partitions: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int
    start_offset: int
    find: str
    rows: tuple[RecordRow, ...]
    next_offset: int | None
    looked_at_bytes: int
    stopped: bool

    @property
    def previous_offset(self) -> int | None:
        """The offset at which the page before begins; None at the log start."""
        if self.start_offset <= self.log_start_offset:
            return None
        return max(self.log_start_offset, self.start_offset - RECORDS_A_PAGE)


def browse(
    log: LogDir,
    topic: str,
    partition: int,
    offset: int | None = None,
    *,
    timestamp_ms: int | None = None,
    find: str = "",
    formats: Mapping[str, str] | None = None,
    most_records: int = RECORDS_A_PAGE,
    most_bytes: int = MOST_BYTES,
    shown_bytes: int = SHOWN_BYTES,
) -> RecordPage:
    """The records from `offset` on, or from the first record of a time or later, or the last of the partition.

    `find`: only records whose key or value has the UTF-8 bytes of this text. The search stops after `most_bytes`, and
    the page then says where to go on. Raises UnknownTopicError, ValueFormatError, CorruptBatchError.
    """
    snapshot = log.topic(topic).snapshot
    snapshot.check_partition(partition)
    bounds = snapshot.offset_bounds()
    log_start, log_end = bounds[partition]
    if timestamp_ms is not None:
        first = offsets_for_times(log.storage, snapshot, {partition: timestamp_ms})[partition]
        offset = log_end if first is None else first[0]
    elif offset is None:
        offset = log_end - most_records if not find else log_start
    start = min(max(offset, log_start), log_end)
    kept: list[pa.RecordBatch] = []
    left, looked_at, next_offset, stopped = most_records, 0, start, False
    # An error of a format names the place of a record.
    columns = (*_COLUMNS, "topic", "partition") if formats else _COLUMNS
    for batch in log.topic(topic).scan(partition=partition, offsets=(start, log_end), columns=columns).batches():
        taken = _matching(batch, find.encode(), left)
        if len(taken):
            kept.append(batch.take(pa.array(taken)))
            left -= len(taken)
        looked_at += batch.nbytes
        offsets = batch.column("offset")
        if left == 0:
            next_offset = offsets[int(taken[-1])].as_py() + 1
            break
        next_offset = offsets[-1].as_py() + 1
        if looked_at >= most_bytes:
            stopped = True
            break
    else:
        next_offset = log_end
    rows = [row for batch in kept for row in _rows(_decoded(log, topic, batch, formats), shown_bytes)]
    return RecordPage(
        topic,
        partition,
        tuple(sorted(bounds)),
        log_start,
        log_end,
        start,
        find,
        tuple(rows),
        next_offset if next_offset < log_end else None,
        looked_at,
        stopped and next_offset < log_end,
    )


def _matching(batch: pa.RecordBatch, find: bytes, most: int) -> np.ndarray:
    """int64[]: the first rows, at most so many, whose key or value has the bytes."""
    if not find:
        return np.arange(min(most, batch.num_rows))
    rows = {row for name in ("key", "value") for row in _rows_with(batch.column(name), find, most)}
    return np.array(sorted(rows)[:most], np.int64)


def _rows_with(array: pa.BinaryArray, find: bytes, most: int) -> Iterator[int]:
    """The first rows, at most so many, whose bytes have `find`: a search of all bytes at once, ten times Arrow's."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    if not len(array) or offsets[0] == offsets[-1]:
        return
    data = memoryview(array.buffers()[2])[int(offsets[0]) : int(offsets[-1])].tobytes()
    ends = offsets - offsets[0]
    at = data.find(find)
    while at >= 0 and most:
        row = int(np.searchsorted(ends, at, side="right")) - 1
        inside = at + len(find) <= ends[row + 1]
        if inside and array[row].is_valid:
            most -= 1
            yield row
        at = data.find(find, int(ends[row + 1]) if inside else at + 1)


def _decoded(
    log: LogDir, topic: str, batch: pa.RecordBatch, formats: Mapping[str, str] | None
) -> tuple[pa.RecordBatch, frozenset[str]]:
    """The batch with keys and values as bytes to show, and the names of its columns that are JSON."""
    if not formats:
        return batch, frozenset()
    typed = Columns(_COLUMNS, log.topic(topic).decoders(formats))
    [done] = textual(typed.decoded([batch.select(typed.wanted)]))
    return done


def _rows(decoded: tuple[pa.RecordBatch, frozenset[str]], shown_bytes: int) -> Iterator[RecordRow]:
    batch, as_json = decoded
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers"))
    for time_us, offset, key, value, headers in zip(times, *columns, strict=True):
        yield RecordRow(
            offset,
            -1 if time_us < 0 else time_us // 1000,
            _shown(key, shown_bytes, is_json="key" in as_json),
            _shown(value, shown_bytes, is_json="value" in as_json),
            tuple(
                (_text(header["key"], shown_bytes), _shown(header["value"], shown_bytes)) for header in headers or []
            ),
        )


def _shown(value: bytes | None, most: int, *, is_json: bool = False) -> Shown:
    if value is None:
        return Shown("null", "null", 0)
    size, cut = len(value), len(value) > most
    try:
        text = value[:most].decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < most - 3:
            return Shown(value[:_HEX_BYTES].hex(" "), "binary", size, size > _HEX_BYTES)
        text = value[: error.start].decode()  # the cut falls inside a character
    if any(ord(letter) < 32 and letter not in "\t\n\r" for letter in text):
        return Shown(value[:_HEX_BYTES].hex(" "), "binary", size, size > _HEX_BYTES)
    return Shown(text, "json" if is_json or _is_json(text, cut) else "text", size, cut)


def _is_json(text: str, cut: bool) -> bool:
    if cut or text[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def pretty(shown: Shown) -> str:
    """JSON on several lines; any other text as it is."""
    if shown.kind != "json" or shown.cut:
        return shown.text
    try:
        value: Any = json.loads(shown.text)
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:  # nested so deeply that its lines would be longer than the page is wide
        return shown.text


def _text(name: str, most: int) -> str:
    return name if len(name) <= most else name[:most] + "…"


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
