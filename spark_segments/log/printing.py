"""How a log directory and what is in it print themselves, in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_segments.errors import SegmentsError
from spark_segments.quantities import Bytes, human_bytes

MOST_ROWS = 20
"""Rows that are printed at most."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What is printed: a line of facts, and a table below it."""

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()

    def text(self) -> str:
        """For a terminal. Numbers stand at the right."""
        lines = [f"{self.title}({', '.join(f'{name}={value!r}' for name, value in self.facts.items())})"]
        shown, columns = self.rows[:MOST_ROWS], range(len(self.columns))
        table = [list(self.columns), *([_shown(cell) for cell in row] for row in shown)]
        widths = [max(len(row[at]) for row in table) for at in columns]
        numeric = [all(isinstance(row[at], int) for row in shown) for at in columns]
        for row in table if shown else []:
            cells = (
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            )
            lines.append("  " + "  ".join(cells).rstrip())
        return "\n".join([*lines, *self._left_out()])

    def html(self) -> str:
        """For a notebook."""
        facts = ", ".join(f"{html.escape(name)}: {html.escape(_shown(value))}" for name, value in self.facts.items())
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(cell))}</td>" for cell in row) + "</tr>"
            for row in self.rows[:MOST_ROWS]
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self.rows else ""
        return f"<div><b>{html.escape(self.title)}</b> {facts}{table}{''.join(self._left_out())}</div>"

    def _left_out(self) -> Iterator[str]:
        if len(self.rows) > MOST_ROWS:
            yield f"  and {len(self.rows) - MOST_ROWS:,} more"


def _shown(cell: Any) -> str:
    if isinstance(cell, Bytes):
        return human_bytes(cell)
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


class Prints:
    """Prints itself as its `_printed` says, and what it is and the error where that cannot be read."""

    __slots__ = ()

    def _printed(self) -> Printed:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._or_error().text()

    def _repr_html_(self) -> str:
        return self._or_error().html()

    def _or_error(self) -> Printed:
        try:
            return self._printed()
        except (SegmentsError, OSError) as error:
            return Printed(type(self).__name__, {"error": str(error)})
