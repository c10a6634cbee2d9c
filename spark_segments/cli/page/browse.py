"""Records of a topic for the page's browser, newest first: a bounded piece of the log at a time, with a cursor to the
next.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.records.value_text import textual
from spark_segments.errors import InvalidOptionError
from spark_segments.log import offsets_for_times
from spark_segments.values.batches import FormatColumns
from spark_segments.values.format_options import has_one_encoding

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.face.topic import Topic
    from spark_segments.log import KeyCoverage, Snapshot

RECORDS_A_PAGE = 50
MOST_BYTES = 64 << 20
"""A filter looks at so many bytes of keys, values and headers in a request, and then gives a cursor."""

MOST_TOGETHER = 500
"""Up to so many partitions are shown together: a cursor names the place in each of them."""

SHOWN_BYTES = 600
SHOWN_KEY_BYTES = 100
WHOLE_BYTES = 1 << 20
"""So much of a value and of a key is shown in the list, and of both on the page of a single record."""

Cursor = Mapping[int, int]
"""{partition: an offset}: a place between records of each partition."""

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_HEX_BYTES = 48
_WINDOW_BYTES = 8 << 20  # a search reads about so much of a partition at once


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

    partition: int
    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which records a page has. `find`: a text in the bytes of key or value. `field`: `user.city=Berlin`, a field of a
    JSON value and its text. `key`: the whole key, as text.
    """

    find: str = ""
    field: str = ""
    key: str = ""

    def __bool__(self) -> bool:
        return bool(self.find or self.field or self.key)

    def query(self) -> dict[str, str]:
        """The filter as it stands in an address."""
        texts = {"find": self.find, "field": self.field, "key": self.key}
        return {name: text for name, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records of a topic from `lower` to `upper` that match the filter, newest first.

    `partition`: None where the partitions are shown together. `bounds`: {partition: (log start, log end)} of the shown
    partitions. `looked_at_bytes`: how many bytes were searched. `stopped`: the limit of bytes, and not the number of
    records or an end of the log, ended the page. `coverage`: of a key, what the index of keys says of the whole log.
    """

    topic: str
    partition: int | None
    partitions: tuple[int, ...]
    bounds: Mapping[int, tuple[int, int]]
    lower: Cursor
    upper: Cursor
    filter: RowFilter
    rows: tuple[RecordRow, ...]
    looked_at_bytes: int
    stopped: bool
    coverage: KeyCoverage | None = None

    @property
    def older(self) -> Cursor | None:
        """Before which the next page's records are; None at the log start."""
        return self.lower if any(self.lower[number] > start for number, (start, _) in self.bounds.items()) else None

    @property
    def newer(self) -> Cursor | None:
        """From which on the records of the page before are; None at the log end."""
        return self.upper if any(self.upper[number] < end for number, (_, end) in self.bounds.items()) else None

    @property
    def share(self) -> float:
        """How much of the log, by offsets, a search from the log end has passed."""
        offsets = sum(end - start for start, end in self.bounds.values())
        return sum(end - self.lower[number] for number, (_, end) in self.bounds.items()) / max(offsets, 1)


def browse(
    log: LogDir,
    topic: str,
    partition: int | None = None,
    *,
    before: Cursor | None = None,
    after: Cursor | None = None,
    until_ms: int | None = None,
    only: RowFilter | None = None,
    formats: Mapping[str, str] | None = None,
    most_records: int = RECORDS_A_PAGE,
    most_bytes: int = MOST_BYTES,
    shown_bytes: tuple[int, int] = (SHOWN_KEY_BYTES, SHOWN_BYTES),
) -> RecordPage:
    """The newest records before a cursor, or up to a time, or of all; or the oldest from the cursor `after` on.

    Partitions are merged by time, each in the order of its offsets. A search stops after `most_bytes`, and the page
    then says where to go on. `shown_bytes`: of keys, and of values. Raises UnknownTopicError, InvalidOptionError,
    ValueFormatError, CorruptBatchError.
    """
    handle = log.topic(topic)
    snapshot = handle.snapshot
    row_filter = only or RowFilter()
    bounds = snapshot.offset_bounds()
    numbers = tuple(sorted(bounds))
    if partition is not None:
        snapshot.check_partition(partition)
        bounds = {partition: bounds[partition]}
    forward = after is not None
    begins = _begins(log, snapshot, bounds, (after if forward else before) or {}, until_ms)
    candidates = None
    if row_filter.key:
        candidates = _key_candidates(handle, bounds, row_filter.key, formats or {})
    walk = _Walk(log, handle, bounds, dict(begins), forward, row_filter, formats, most_records, candidates)
    hits, is_stopped = walk.records(most_records, most_bytes)
    rows = [row for hit in hits for row in _rows(_decoded(log, topic, hit, formats), shown_bytes)]
    if forward:
        rows.reverse()  # a page is newest first, whichever way it was read
    return RecordPage(
        topic=topic,
        partition=partition,
        partitions=numbers,
        bounds=bounds,
        lower=begins if forward else walk.cursor(),
        upper=walk.cursor() if forward else begins,
        filter=row_filter,
        rows=tuple(rows),
        looked_at_bytes=walk.looked_at,
        stopped=is_stopped,
        coverage=None if candidates is None else candidates.coverage,
    )


def _begins(
    log: LogDir,
    snapshot: Snapshot,
    bounds: Mapping[int, tuple[int, int]],
    cursor: Cursor,
    until_ms: int | None,
) -> dict[int, int]:
    """Where a page begins in each partition: at the cursor; else behind the records up to a time, or at the log end."""
    ends = {number: end for number, (_, end) in bounds.items()}
    if until_ms is not None:
        firsts = offsets_for_times(log.storage, snapshot, dict.fromkeys(bounds, until_ms + 1))
        ends |= {number: first[0] for number, first in firsts.items() if first is not None}
    # A cursor in an address may be old: retention has passed it by now, or the topic was created again and is shorter.
    return {number: min(max(cursor.get(number, ends[number]), start), end) for number, (start, end) in bounds.items()}


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Where records of a key can be: {partition: ranges of offsets}, all that the index does not have included."""

    key: bytes
    offsets: Mapping[int, Sequence[tuple[int, int]]]
    coverage: KeyCoverage | None

    def next_range(self, partition: int, at: int, bound: int) -> tuple[int, int]:
        """The nearest range between a place and a bound before or behind it; an empty one at the bound if there is
        none.
        """
        low, high = sorted((at, bound))
        ranges = [(max(start, low), min(end, high)) for start, end in self.offsets.get(partition, ())]
        ranges = [(start, end) for start, end in ranges if start < end]
        if not ranges:
            return bound, bound
        return ranges[0] if bound > at else ranges[-1]


def _key_candidates(
    topic: Topic, bounds: Mapping[int, tuple[int, int]], key: str, formats: Mapping[str, str]
) -> _Candidates:
    """Asks the index of a topic's keys. Raises InvalidOptionError for a text that is no key."""
    if not has_one_encoding(formats):
        raise InvalidOptionError(
            "Keys of this format have several encodings", expected="a text in the field Find", found=key[:40]
        )
    [stored] = topic.key_bytes(key, formats)
    scan = topic.scan(offsets=dict(bounds), columns=_COLUMNS, keys=stored)
    return _Candidates(stored, scan.offsets, scan.coverage)


@dataclass(slots=True)
class _Walk:
    """A merge of partitions by time, backward or forward, that reads no more of them than it needs.

    `read_to`: {partition: how far it is read}. A partition's next record is in `_loaded`, or unread. Of an unread one
    the segment's largest timestamp is known: no record in it is newer. Forward nothing is known, so it is read first.
    """

    log: LogDir
    topic: Topic
    bounds: Mapping[int, tuple[int, int]]
    read_to: dict[int, int]
    forward: bool
    only: RowFilter
    formats: Mapping[str, str] | None
    window: int
    candidates: _Candidates | None = None
    looked_at: int = 0
    _loaded: dict[int, deque[tuple[int, int, pa.RecordBatch]]] = field(default_factory=dict)
    _windows: dict[int, int] = field(default_factory=dict)

    def records(self, most_records: int, most_bytes: int) -> tuple[list[pa.RecordBatch], bool]:
        """The next records, a batch of one row each; and whether the limit of bytes ended them."""
        heap = [place for place in map(self._place, self.bounds) if place is not None]
        heapify(heap)
        hits: list[pa.RecordBatch] = []
        while heap and len(hits) < most_records:
            _, number = heappop(heap)
            loaded = self._loaded.get(number)
            if loaded:
                hits.append(loaded.popleft()[2])
            elif self.looked_at >= most_bytes:
                return hits, True
            else:
                self._load(number)
            place = self._place(number)
            if place is not None:
                heappush(heap, place)
        return hits, False

    def cursor(self) -> dict[int, int]:
        """Where the next page begins."""
        # A cursor lies between records: forward before the next one, backward behind it. Without the 1 the next page
        # backward would leave that record out.
        behind = 0 if self.forward else 1
        return self.read_to | {number: hits[0][1] + behind for number, hits in self._loaded.items() if hits}

    def _place(self, number: int) -> tuple[float, int] | None:
        """The partition's place in the heap: of its next record, or of what is unread; None at its end."""
        loaded = self._loaded.get(number)
        if loaded:
            time_us = loaded[0][0]
            return (time_us if self.forward else -time_us), number
        start, end = self.bounds[number]
        read_to = self.read_to[number]
        is_at_end = read_to >= end if self.forward else read_to <= start
        if is_at_end:
            return None
        if self.forward or len(self.bounds) == 1:
            return -math.inf, number
        return -self._newest_us(number), number

    def _newest_us(self, number: int) -> float:
        """The largest timestamp of the segment that the next record is in."""
        rows = self.topic.snapshot.live_table(number)
        place = int(np.searchsorted(rows.column("base_offset").to_numpy(), self.read_to[number])) - 1
        return -math.inf if place < 0 else 1000 * rows.column("max_timestamp_ms")[place].as_py()

    def _load(self, number: int) -> None:
        """Reads the partition's next window; windows grow while they are small."""
        start, end = self.bounds[number]
        at = self.read_to[number]
        size = self._windows.get(number, self.window)
        #   forward:   |start ······ [at ···· at + size) ······ end|
        #   backward:  |start ······ [at - size ···· at) ······ end|
        # Clipped to the log: a scan refuses offsets outside. Of a key, to the nearest range that can have it: what lies
        # between has no record of it.
        if self.candidates is not None:
            start, end = self.candidates.next_range(number, at, end if self.forward else start)
            at = start if self.forward else end
        first = at if self.forward else max(at - size, start)
        last = min(at + size, end) if self.forward else at
        hits: list[tuple[int, int, pa.RecordBatch]] = []
        looked_at = 0
        scan = self.topic.scan(partition=number, offsets=(first, last), columns=(*_COLUMNS, "topic", "partition"))
        for batch in scan.batches():
            looked_at += batch.nbytes
            times = batch.column("timestamp").cast(pa.int64())
            for row in self._matching(batch):
                hits.append((times[row].as_py(), batch.column("offset")[row].as_py(), batch.slice(row, 1)))
        self.looked_at += looked_at
        self.read_to[number] = last if self.forward else first
        self._loaded[number] = deque(hits if self.forward else reversed(hits))
        if looked_at < _WINDOW_BYTES // 2:
            self._windows[number] = 2 * size

    def _matching(self, batch: pa.RecordBatch) -> list[int]:
        """The rows that the filter lets through."""
        rows: list[int] = _matching(batch, self.only.find.encode(), batch.num_rows).tolist()
        if self.candidates is not None:
            has_key = pc.equal(batch.column("key"), self.candidates.key).fill_null(False).to_numpy(zero_copy_only=False)
            rows = [row for row in rows if has_key[row]]
        if not self.only.field or not rows:
            return rows
        decoded, _ = _decoded(self.log, self.topic.name, batch.take(pa.array(rows)), self.formats)
        values = decoded.column("value").to_pylist()
        return [row for row, value in zip(rows, values, strict=True) if _has_field(value, self.only.field)]


def _has_field(value: bytes | None, field_text: str) -> bool:
    """Whether a JSON value has a field of this text: `user.city=Berlin`, `tags.0=new`, `id=7`."""
    path, _, text = field_text.partition("=")
    if value is None or value.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        member = json.loads(value)
    except (ValueError, RecursionError):
        return False
    for name in path.strip().split("."):
        if isinstance(member, list) and name.isdigit() and int(name) < len(member):
            member = member[int(name)]
        elif isinstance(member, dict) and name in member:
            member = member[name]
        else:
            return False
    shown = member if isinstance(member, str) else json.dumps(member, ensure_ascii=False)
    return shown == text.strip()


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
    remaining = most
    while at >= 0 and remaining:
        row = int(np.searchsorted(ends, at, side="right")) - 1
        # Bytes of neighbouring rows lie side by side: a hit over the border is in neither of them.
        is_inside = at + len(find) <= ends[row + 1]
        if is_inside and array[row].is_valid:
            remaining -= 1
            yield row
        at = data.find(find, int(ends[row + 1]) if is_inside else at + 1)


def _decoded(
    log: LogDir, topic: str, batch: pa.RecordBatch, formats: Mapping[str, str] | None
) -> tuple[pa.RecordBatch, frozenset[str]]:
    """The batch with keys and values as bytes to show, and the names of its columns that are JSON."""
    if not formats:
        return batch, frozenset()
    names = (*_COLUMNS, "partition")
    typed = FormatColumns(names, log.topic(topic).decoders(formats))
    [done] = textual(typed.decoded([batch.select(typed.wanted)]))
    return done


def _rows(decoded: tuple[pa.RecordBatch, frozenset[str]], shown_bytes: tuple[int, int]) -> Iterator[RecordRow]:
    batch, as_json = decoded
    most_key, most_value = shown_bytes
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value", "headers"))
    for time_us, partition, offset, key, value, headers in zip(times, *columns, strict=True):
        yield RecordRow(
            partition,
            offset,
            -1 if time_us < 0 else time_us // 1000,
            _shown(key, most_key, is_json="key" in as_json),
            _shown(value, most_value, is_json="value" in as_json),
            tuple((_cut(header["key"], most_value), _shown(header["value"], most_value)) for header in headers or []),
        )


def _shown(value: bytes | None, most: int, *, is_json: bool = False) -> Shown:
    if value is None:
        return Shown("null", "null", 0)
    size = len(value)
    is_cut = size > most
    binary = Shown(value[:_HEX_BYTES].hex(" "), "binary", size, size > _HEX_BYTES)
    try:
        text = value[:most].decode()
    except UnicodeDecodeError as error:
        # A character of UTF-8 has at most four bytes: only an error in the last three can come from the cut.
        if not is_cut or error.start < most - 3:
            return binary
        text = value[: error.start].decode()
    if any(ord(letter) < 32 and letter not in "\t\n\r" for letter in text):
        return binary
    kind = "json" if is_json or _is_json(text, is_cut) else "text"
    return Shown(text, kind, size, is_cut)


def _is_json(text: str, is_cut: bool) -> bool:
    if is_cut or text[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[:most] + "…"


def cursor_of(text: str) -> dict[int, int]:
    """The cursor of an address. Raises InvalidOptionError."""
    try:
        places = [[int(number) for number in place.split(":")] for place in text.split(",")]
        return {number: min(offset, 2**63 - 1) for number, offset in places}
    except ValueError:
        raise InvalidOptionError("This is no place in a log", expected="partition:offset", found=text[:40]) from None
