"""How far a job is: a bar on a terminal and in a notebook, which any `progress` of a job can be."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module

from spark_segments.errors import MissingExtraError
from spark_segments.quantities import human_bytes

Progress = Callable[[int, int], None]

_PAUSE_SECONDS = 0.2  # between two looks of a notebook


def part_of(progress: Progress | None, before: int, size: int, total: int) -> Progress | None:
    """The progress of `size` things of `total`, behind those `before`; it may count in another unit."""
    return None if progress is None else lambda done, all_of_it: progress(before + size * done // all_of_it, total)


@contextlib.contextmanager
def progress_bar(label: str, *, of_bytes: bool = False) -> Iterator[Progress]:
    """A function that takes (done, total) and shows them as a bar: below the cell of a notebook, or on standard error
    where that is a terminal (which needs the extra `cli`); with what is left, and `of_bytes` with their rate.

    A count that begins again, as for each topic, goes on from the last.
    """
    in_notebook = _is_notebook()
    if not in_notebook and not sys.stderr.isatty():
        yield lambda done, total: None
        return
    before = last = end = 0
    with (_notebook_bar if in_notebook else _terminal_bar)(label, of_bytes) as update:

        def show(done: int, total: int) -> None:
            nonlocal before, last, end
            if last == end or done < last:
                before += last
            last, end = done, total
            update(before + done, before + total)

        yield show


def _is_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config


@contextlib.contextmanager
def _terminal_bar(label: str, of_bytes: bool) -> Iterator[Progress]:
    try:
        from rich import progress as bars  # a command without a terminal does not wait for its import
        from rich.console import Console
    except ImportError as error:
        raise MissingExtraError("cli", "Bars on a terminal", "rich") from error

    shown: list[bars.ProgressColumn] = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    shown += [bars.DownloadColumn(binary_units=True), bars.TextColumn("{task.fields[rate]}/s")] if of_bytes else []
    shown += [] if of_bytes else [bars.MofNCompleteColumn()]
    shown += [bars.TimeElapsedColumn(), bars.TextColumn("left:"), bars.TimeRemainingColumn()]
    with bars.Progress(*shown, console=Console(stderr=True), transient=True) as progress:
        begun = time.monotonic()
        task = progress.add_task(label, total=None, rate="?")

        def update(done: int, total: int) -> None:
            rate = human_bytes(done / max(time.monotonic() - begun, 0.001))
            progress.update(task, completed=done, total=total, rate=rate)

        yield update


@contextlib.contextmanager
def _notebook_bar(label: str, of_bytes: bool) -> Iterator[Progress]:
    notebook = import_module("IPython.display")
    begun, done, total, looked = time.monotonic(), 0, 0, 0.0

    def bar() -> object:
        shown = human_bytes if of_bytes else "{:,}".format
        seconds = time.monotonic() - begun
        facts = [f"{shown(done)} of {shown(total)}"] if total else ["…"]
        facts += [f"{human_bytes(done / seconds)}/s"] if of_bytes and seconds else []
        facts += [f"{seconds:.0f} s", f"left: {seconds * (total - done) / done:.0f} s" if done else "left: …"]
        value = f'value="{done}" max="{total}"' if total else ""
        return notebook.HTML(f"<div>{html.escape(label)} <progress {value}></progress> {', '.join(facts)}</div>")

    handle = notebook.display(bar(), display_id=True)

    def update(now: int, of: int) -> None:
        nonlocal done, total, looked
        done, total = now, of
        if time.monotonic() - looked > _PAUSE_SECONDS:
            looked = time.monotonic()
            handle.update(bar())

    try:
        yield update
    finally:
        handle.update(bar())
