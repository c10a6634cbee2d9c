"""Lines of text as rows: what Kafka's console producer reads, and what Kafka's console consumer prints."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.records.input_files import line_spans
from spark_segments.cli.records.record_text import Properties
from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.values.rows import gathered, offsets_of
from spark_segments.values.text.json_write import quoted

_PRINTED = ("timestamp", "partition", "offset", "headers", "key")
_OF_HEADERS = ("headers.delimiter", "headers.separator", "headers.key.separator")
_PARSED = {"headers": "headers.delimiter", "key": "key.separator"}
_NUMBERS = {
    "timestamp": (r"^(?:(?:CreateTime|LogAppendTime):(?P<n>-?\d{1,18})|NO_TIMESTAMP|NoTimestampType:-1)$", pa.int64()),
    "partition": (r"^Partition:(?P<n>\d{1,9})$", pa.int32()),
    "offset": (r"^Offset:(?P<n>\d{1,18})$", pa.int64()),
}
"""What the consumer prints of a number. A record without a timestamp has none here."""

_NO_HEADERS = b"NO_HEADERS"


def text_rows(block: pa.Buffer, properties: Properties, file: str, before: int) -> pa.RecordBatch:
    """The lines of a block as records: by the consumer's properties print.*, where any is set, else by the producer's
    parse.*. `before`: the file's lines before these. Raises InvalidOptionError with the line.
    """
    return _Lines(properties, file, before).rows(gathered(block, *line_spans(block)))


class _Lines:
    def __init__(self, properties: Properties, file: str, before: int) -> None:
        printed = [name for name in _PRINTED if properties.flag(f"print.{name}")]
        parsed = [name for name in _PARSED if properties.flag(f"parse.{name}")]
        ignores = properties.flag("ignore.error")
        if printed and (parsed or ignores or not properties.flag("print.value")):
            producers = f"parse.{parsed[0]}" if parsed else "ignore.error"
            raise InvalidOptionError(
                "The properties print.* name the parts of lines that a consumer printed",
                expected="lines with values, and no property of a producer (parse.*, ignore.error)",
                found=producers if parsed or ignores else "print.value=false",
            )
        self._properties = properties
        self._file = file
        self._before = before
        self._is_printed = bool(printed)
        self._ignores_errors = ignores
        self._separators = dict.fromkeys(printed, "key.separator") or {name: _PARSED[name] for name in parsed}
        self._nulls = [*properties.null_markers, *([properties.bytes("null.literal")] if printed else ())]
        if not printed:
            self._check_apart()

    def rows(self, rest: pa.BinaryArray) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for name, separator in self._separators.items():
            texts = rest
            columns[name], rest, is_found = _split(texts, self._separator(separator))
            if self._ignores_errors:
                columns[name] = pc.if_else(pa.array(is_found), columns[name], pa.scalar(None, pa.binary()))
                rest = pc.if_else(pa.array(is_found), rest, texts)
            elif not is_found.all():
                row = int(is_found.argmin())
                raise self._wrong(
                    row,
                    f"has no {name}",
                    expected=f"{name}, {self._properties.values[separator]!r} and the rest",
                    found=f"{len(texts[row].as_py())} bytes without the separator",
                    hint=f"Set --property {separator}=…, or leave {self._flag(name)} out",
                )
        columns["value"] = rest
        for name in columns.keys() & _NUMBERS.keys():
            columns[name] = self._numbers(columns[name], name)
        columns.pop("offset", None)
        if "headers" in columns:
            columns["headers"] = self._headers(columns["headers"])
        for name in columns.keys() & {"key", "value"}:
            columns[name] = self._with_nulls(columns[name])
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    def _check_apart(self) -> None:
        """Raises InvalidOptionError for equal separators, as Kafka's reader does."""
        markers = ["null.marker"] if self._properties.null_markers else []
        apart = [*itertools.combinations(_OF_HEADERS, 2), *itertools.product(markers, ("key.separator", *_OF_HEADERS))]
        for name, other in apart:
            text = self._properties.values[name]
            if text and text == self._properties.values[other]:
                raise InvalidOptionError(
                    f"Properties {name} and {other} are equal", expected="two texts", found=repr(text)
                )

    def _flag(self, name: str) -> str:
        return f"{'print' if self._is_printed else 'parse'}.{name}"

    def _wrong(self, row: int, what: str, **more: Any) -> InvalidOptionError:
        return InvalidOptionError(f"Line {self._before + row + 1} {what}", path=self._file, **more)

    def _separator(self, name: str) -> bytes:
        found = self._properties.bytes(name)
        if not found:
            raise InvalidOptionError(f"Property {name} is empty", expected="a character or more")
        return found

    def _with_nulls(self, texts: pa.BinaryArray) -> pa.BinaryArray:
        for null in self._nulls:
            texts = pc.if_else(pc.equal(texts, pa.scalar(null, pa.binary())), pa.scalar(None, pa.binary()), texts)
        return texts

    def _numbers(self, texts: pa.BinaryArray, name: str) -> pa.Array:
        pattern, kind = _NUMBERS[name]
        found = pc.extract_regex(texts, pattern)
        wrong = pc.index(found.is_valid(), False).as_py()
        if wrong >= 0:
            raise self._wrong(
                wrong,
                f"does not begin its {name} as a consumer prints it",
                expected={"timestamp": "CreateTime:1700000000000"}.get(name, f"{name.capitalize()}:0"),
                hint=f"A value may have more than one line. Leave {self._flag(name)} out where lines lack it",
            )
        digits = found.field("n").cast(pa.string())
        return pc.if_else(pc.equal(pc.binary_length(digits), 0), pa.scalar(None, pa.string()), digits).cast(kind)

    def _headers(self, texts: pa.BinaryArray) -> pa.ListArray:
        """The headers of each line. A line whose headers are null.marker has none, or that a consumer printed so."""
        markers = [_NO_HEADERS, b""] if self._is_printed else self._properties.null_markers
        has_none = texts.is_null()
        for marker in markers:
            has_none = pc.or_(has_none, pc.equal(texts.fill_null(b""), pa.scalar(marker, pa.binary())))
        texts = pc.if_else(has_none, pa.scalar(b"", pa.binary()), texts)
        listed = pc.split_pattern(texts, self._separator("headers.separator"))
        filled = pc.greater(pc.binary_length(listed.flatten()), 0).to_numpy(zero_copy_only=False)
        lines = pc.list_parent_indices(listed).to_numpy()
        kept = filled
        if not self._is_printed:
            kept = _without_empty_ends(filled, lines, len(texts)) & ~has_none.to_numpy(zero_copy_only=False)[lines]
        pairs = listed.flatten().filter(pa.array(kept))
        rows = lines[kept]
        keys, values = self._keys_and_values(pairs, rows)
        headers = pa.StructArray.from_arrays([keys.cast(pa.string()), values], fields=[*HEADERS_TYPE.value_type])
        row_ends = np.cumsum(np.bincount(rows, minlength=len(texts)), dtype=np.int32)
        return pa.ListArray.from_arrays(np.append(np.int32(0), row_ends), headers, HEADERS_TYPE)

    def _keys_and_values(self, pairs: pa.BinaryArray, rows: np.ndarray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """The keys and values of headers, of these lines. With ignore.error a header without a separator is a key."""
        separator = "headers.key.separator"
        keys, values, is_found = _split(pairs, self._separator(separator))
        if self._ignores_errors:
            values = pc.if_else(pa.array(is_found), values, pa.scalar(None, pa.binary()))
        elif not is_found.all():
            at = int(is_found.argmin())
            raise self._wrong(
                int(rows[at]),
                "has a header without a value",
                expected=f"a key, {self._properties.values[separator]!r} and a value",
                found=f"{len(pairs[at].as_py())} bytes without the separator",
                hint=f"Set --property {separator}=…"
                + ("" if self._is_printed else ", or ignore.error=true: the value of such a header is null"),
            )
        wrong = pc.index(quoted(keys).is_null(), True).as_py()
        if wrong >= 0:
            raise self._wrong(int(rows[wrong]), "has a header whose key is not UTF-8")
        for marker in () if self._is_printed else self._properties.null_markers:
            marked = pc.index(keys, pa.scalar(marker, pa.binary())).as_py()
            if marked >= 0:
                raise self._wrong(int(rows[marked]), "has a header whose key is null.marker: a key cannot be null")
        return keys, self._with_nulls(values)


def _without_empty_ends(filled: np.ndarray, lines: np.ndarray, count: int) -> np.ndarray:
    """bool[n]: which pieces of split lines stay, as Java's split has it: empty ones at a line's end go, unless the line
    was not split at all. `filled`: whether each piece has a text; `lines`: the line of each, of so many.
    """
    places = np.arange(len(filled))
    last_filled = np.full(count, -1)
    last_filled[lines[filled]] = places[filled]
    is_alone = np.bincount(lines, minlength=count) == 1
    kept: np.ndarray = (places <= last_filled[lines]) | is_alone[lines]
    return kept


def _split(texts: pa.BinaryArray, separator: bytes) -> tuple[pa.BinaryArray, pa.BinaryArray, np.ndarray]:
    """(what is before, what is behind the first separator of each text, bool[n] whether it has one)"""
    offsets = offsets_of(texts)
    starts = offsets[:-1]
    ends = offsets[1:]
    places = pc.find_substring(texts, separator).to_numpy().astype(np.int64)
    before_ends = np.where(places < 0, ends, starts + places)
    behind = np.minimum(before_ends + len(separator), ends)
    data = texts.buffers()[2]
    heads = gathered(data, starts, before_ends - starts)
    tails = gathered(data, behind, ends - behind)
    return heads, tails, places >= 0
