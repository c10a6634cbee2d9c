"""Files of CSV as batches of columns, by Arrow's reader."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv

from spark_segments.cli.records.input_files import UTF_8, Reached, opened, unreadable
from spark_segments.cli.records.record_text import unescaped
from spark_segments.errors import InvalidOptionError
from spark_segments.values.text.base64 import decode
from spark_segments.values.undecodable import Undecodable

CSV_HEAD_BYTES = 1 << 20  # the names of a CSV file's columns are in its first bytes


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """How files of CSV are written. `sep`: None is a tab in files that are named .tsv, a comma in others. `quote`: ""
    is none. `base64_columns`: those whose text stands for bytes.
    """

    has_header: bool
    sep: str | None
    quote: str
    base64_columns: Sequence[str]

    @classmethod
    def of(cls, options: Mapping[str, str], base64_columns: Sequence[str]) -> CsvLayout:
        """The layout that the options of a command say. Raises InvalidOptionError."""
        has_header = options.get("header", "true").lower() == "true"
        quote = _character("quote", options.get("quote", '"'))
        sep = _character("sep", options["sep"]) if "sep" in options else None
        if sep == "":
            raise InvalidOptionError("Option sep of CSV is empty", expected="one character, such as ; or \\t")
        return cls(has_header, sep, quote, base64_columns)

    def batches(
        self,
        file: str,
        check: Callable[[pa.Schema, str], None],
        reached: Reached,
        encoding: str = UTF_8,
        *,
        are_typed: bool,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file. `check`: raises for columns that the command cannot take. `are_typed`: columns have the
        types that Arrow finds, since a format encodes them; else they are text.

        Raises InvalidOptionError, and pa.ArrowException for what is no CSV.
        """
        parsing = self._parsing(file)
        with opened(file, encoding) as (stream, byte_position):
            head = stream.read(CSV_HEAD_BYTES)
            names = self._names(head, parsing, file)
            if not names:  # nothing but empty lines
                return
            self._check_names(names, file)
            check(pa.schema([(name, pa.string()) for name in names]), file)
            reading = pv.ReadOptions(autogenerate_column_names=not self.has_header)
            converting = pv.ConvertOptions(
                column_types=dict.fromkeys(self.base64_columns if are_typed else names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            )
            content = pa.PythonFile(_Rejoined(head, stream), mode="r")
            for batch in pv.open_csv(content, reading, parsing, converting):
                reached(file, byte_position())
                yield self._decoded(batch, file)

    def _parsing(self, file: str) -> pv.ParseOptions:
        by_name = "\t" if ".tsv" in Path(file).suffixes[-2:] else ","
        return pv.ParseOptions(
            delimiter=by_name if self.sep is None else self.sep,
            quote_char=self.quote or False,
            newlines_in_values=True,
        )

    def _names(self, head: bytes, parsing: pv.ParseOptions, file: str) -> list[str]:
        """The names of a file's columns, by its first bytes; without a header the names that Arrow gives. Raises
        InvalidOptionError for names that are not UTF-8, which Arrow accepts.
        """
        text = head.decode("utf-8-sig", errors="surrogateescape")
        rows = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=parsing.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )
        first_row = next((row for row in rows if row), [])
        if not self.has_header:
            return [f"f{number}" for number in range(len(first_row))]
        if any("\udc80" <= letter <= "\udcff" for letter in "".join(first_row)):
            raise unreadable(file, "the names of its columns are not UTF-8")
        return first_row

    def _check_names(self, names: Sequence[str], file: str) -> None:
        if len(set(names)) < len(names):
            twice = ", ".join(sorted({name for name in names if names.count(name) > 1}))
            raise InvalidOptionError(
                "Columns of the file have the same name", path=file, found=twice, hint="Rename them"
            )
        unknown = {*self.base64_columns} - {*names}
        if unknown:
            raise InvalidOptionError(
                "Option base64 of CSV names no column", expected=f"of {', '.join(names)}", found=min(unknown)
            )

    def _decoded(self, rows: pa.RecordBatch, file: str) -> pa.RecordBatch:
        """The rows with the bytes that texts in base64 stand for."""
        for name in self.base64_columns:
            try:
                content = decode(rows.column(name))
            except Undecodable as error:
                raise unreadable(file, f"column {name} has text that is {error.reason}") from None
            rows = rows.set_column(rows.schema.get_field_index(name), name, content)
        return rows


def _character(name: str, option: str) -> str:
    """The character that an option of CSV says, which may be an escape such as \\t; "" for none."""
    text = unescaped(f"Option {name} of CSV", option)
    if len(text) > 1 or not text.isascii() or text in ("\n", "\r"):
        raise InvalidOptionError(
            f"Option {name} of CSV is no single character",
            expected="such as ; or \\t",
            found=text,
            hint="Spark's CSV reader takes others: df = spark.read.csv(…), then df.write.format('segments')",
        )
    return text


class _Rejoined:
    """A stream whose first bytes have been read: a pipe gives them once."""

    closed = False

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int) -> bytes:
        """At most `size` bytes, none at the end."""
        if not self._head:
            return bytes(self._rest.read(size))
        content = self._head[:size]
        self._head = self._head[size:]
        return content
