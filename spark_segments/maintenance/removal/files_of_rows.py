"""Which files of the log go with rows: the files of rows that leave the manifest, and files that no row names."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.manifest.rows import (
    DELETING,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.log.segment.shared_object import shared_directory
from spark_segments.storage import FileInfo

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX)
"""The files of a row that has a .log to itself: the .log and what may lie beside it."""


def files_to_delete(topic: str, rows: pa.Table, all_rows: pa.Table) -> list[str]:
    """The files of `rows`, which are being deleted. `all_rows`: all rows of the manifest at that version or later.

    Whatever a row says, these are files in the topic's own directories.

    A shared object is among them only if every row that names it is being deleted: no state follows that one, so nobody
    can need the file again. Of two vacuums that delete the last rows of a file at the same time, the later one sees it.
    """
    shared = pc.is_valid(rows.column("index_position"))
    stems = [path.removesuffix(LOG_SUFFIX) for path in rows.filter(pc.invert(shared)).column("path").to_pylist()]
    files = [stem + suffix for stem in stems for suffix in SUFFIXES]
    if pc.any(shared).as_py():
        needed = all_rows.filter(pc.not_equal(all_rows.column("state"), DELETING)).column("path").combine_chunks()
        paths = pc.unique(rows.filter(shared).column("path"))
        files += paths.filter(pc.invert(pc.is_in(paths, needed))).to_pylist()
    own = re.compile(rf"({re.escape(topic)}-[0-9]+|{re.escape(shared_directory(topic))})/[^/]+")
    return [path for path in files if own.fullmatch(path)]


def orphans(files: Iterable[FileInfo], rows: pa.Table) -> list[FileInfo]:
    """The files that belong to no row: neither a row's .log or shared object nor a file beside a .log."""
    files = list(files)
    if not files:
        return []
    paths = rows.column("path").combine_chunks()
    named = pc.utf8_slice_codeunits(paths, 0, -len(LOG_SUFFIX))
    stems = pa.array([file.path.rpartition(".")[0] for file in files], pa.string())
    known = pc.or_(pc.is_in(stems, named), pc.is_in(pa.array([file.path for file in files], pa.string()), paths))
    return [file for file, flag in zip(files, known.to_pylist(), strict=True) if not flag]
