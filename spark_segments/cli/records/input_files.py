"""The files of an input: their names, and what they hold, in blocks of whole lines."""

from __future__ import annotations

import codecs
import contextlib
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.ahead import Piece, available_cores, read_ahead
from spark_segments.cli.records.live_input import LiveInput
from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.progress import Progress

BLOCK_BYTES = 8 << 20
STANDARD_INPUT = "-"
_LINE_END = ord("\n")
_RETURN = ord("\r")
HINT = 'What Spark, Polars or DuckDB reads, they write, too: df.write.format("segments")'
_LARGEST_BLOCK = 2**31 - 1
UTF_8 = "utf-8"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MARKS_OF_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_NO_TEXT = frozenset(("idna", "punycode", "unicode-escape", "raw-unicode-escape"))
"""Python's encodings of names of hosts and of its own literals."""

_MARKED_BYTES = 4096
"""In so many bytes behind its mark, UTF-16 has a zero: every end of a line has one. Other bytes may begin alike."""
_TAIL_BYTES = 64 << 10  # where the last line of a block most likely begins


def files_of(path: str) -> list[str]:
    """The files of a path, a directory or a pattern, as Spark takes them: no name begins with _ or a dot."""
    if path == STANDARD_INPUT:
        return [path]
    if "://" in path:
        raise InvalidOptionError("Files are read here", expected="files of this machine", found=path, hint=HINT)
    files = []
    for name in sorted(glob.glob(path)):
        if is_stream(name):
            files.append(name)
        inside = sorted(Path(name).rglob("*")) if os.path.isdir(name) else [Path(name)]
        for file in filter(Path.is_file, inside):
            if not any(part.startswith(("_", ".")) for part in file.relative_to(Path(name).parent).parts):
                files.append(str(file))
    if not files:
        raise InvalidOptionError("There is nothing to append", expected="a file, a directory or a pattern", found=path)
    return files


def is_stream(path: str) -> bool:
    """Whether it is read once, from begin to end: standard input, a pipe, what a shell makes of <(…)."""
    return path == STANDARD_INPUT or (os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)))


def text_encoding(name: str) -> str:
    """A name of a text encoding that Python knows: UTF_8 for each name of that one, else as it is. Raises
    InvalidOptionError for a name that is none.
    """
    try:
        "a".encode(name)
        codec = codecs.lookup(name).name.replace("_", "-")
        if codec not in _NO_TEXT:
            return UTF_8 if codec == UTF_8 else name
    except (LookupError, ValueError):  # unknown, from bytes to bytes, or with a byte that no name has
        pass
    raise InvalidOptionError(
        "There is no such encoding of text",
        expected="a name of Python's, such as utf-8, utf-16, latin-1 or cp1252",
        found=name,
    )


@contextlib.contextmanager
def opened(file: str, encoding: str = UTF_8) -> Iterator[tuple[Any, Callable[[], int]]]:
    """The decompressed bytes of a file or stream as UTF-8, and a function that returns how many bytes of the file are
    read.
    """
    with _decompressed(file) as (stream, byte_position):
        yield stream if encoding == UTF_8 else pa.transcoding_input_stream(stream, encoding, UTF_8), byte_position


@contextlib.contextmanager
def _decompressed(file: str) -> Iterator[tuple[Any, Callable[[], int]]]:
    if is_stream(file):
        with contextlib.nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else open(file, "rb") as stream:
            yield pa.PythonFile(stream, mode="r"), int
        return
    codec = None
    with contextlib.suppress(TypeError, ValueError):  # by its name the file has none
        codec = pa.Codec.detect(file).name
    with pa.OSFile(file) as raw:
        yield raw if codec is None else pa.CompressedInputStream(raw, codec), raw.tell


Reached = Callable[[str, int], None]
"""Called with (a file, how many of its bytes are read)."""


def reached(files: Sequence[str], progress: Progress) -> Reached:
    """Reports the read bytes of all files to `progress`; reports nothing where a file has no size."""
    if any(map(is_stream, files)):
        return lambda file, byte_position: None
    *before, total = accumulate(map(os.path.getsize, files), initial=0)
    begins = dict(zip(files, before, strict=True))
    return lambda file, byte_position: progress(begins[file] + byte_position, total)


def blocks(file: str, reached: Reached, live: LiveInput | None = None, encoding: str = UTF_8) -> Iterator[pa.Buffer]:
    """The content of a file, compressed or not, as UTF-8 in blocks of whole lines. A line may be longer than a block.

    Of `live`, which is read in place of the file, a block is empty where nothing came for a while, and a line that has
    not ended when a signal comes is left out.
    """
    rest = np.empty(0, np.uint8)
    is_first = True
    with contextlib.nullcontext((live, int)) if live is not None else opened(file, encoding) as (stream, byte_position):
        while True:
            begun = len(rest)
            block = _block_behind(rest, file)
            content = np.frombuffer(block, np.uint8)
            size = _read_into(stream, content[begun:], file, encoding)
            if size == 0:
                break
            if size is None:
                rest = content[:begun]
                yield block[:0]
                continue
            reached(file, byte_position())
            end = _lines_end(content[: begun + size], begun)
            if end:
                yield _without_mark(block[:end], file) if is_first else block[:end]
                is_first = False
            rest = content[end : begun + size]
    if begun and live is not None and live.is_interrupted:
        print(f"The last line, of {begun} bytes, has no end: it is not appended.", file=sys.stderr)
    elif begun:
        yield _without_mark(block[:begun], file) if is_first else block[:begun]


def _block_behind(rest: np.ndarray, file: str) -> pa.Buffer:
    """A block that begins with the rest of the block before it: a line that has not ended."""
    begun = len(rest)
    # Twice the line that has not ended: read in steps of one size, a very long line would be copied at each.
    room = min(begun + max(BLOCK_BYTES, begun), _LARGEST_BLOCK)
    if room == begun:
        raise unreadable(file, f"a line of more than {_LARGEST_BLOCK} bytes")
    block = pa.allocate_buffer(room)
    np.frombuffer(block, np.uint8)[:begun] = rest
    return block


def _read_into(stream: Any, room: np.ndarray, file: str, encoding: str) -> int | None:
    """How many bytes were read: 0 at the end, None where nothing came for a while."""
    try:
        size: int | None = stream.readinto(room)
    except UnicodeError as error:
        raise undecodable(file, error, encoding) from None
    except OSError as error:  # of a codec, which does not name the file
        raise unreadable(file, error) from None
    return size


def _without_mark(block: pa.Buffer, file: str) -> pa.Buffer:
    """The first block of a file without a byte order mark. Raises InvalidOptionError for UTF-16, by its mark."""
    head = block[:_MARKED_BYTES].to_pybytes()
    if head.startswith(_MARKS_OF_UTF_16) and b"\0" in head:
        raise InvalidOptionError(
            "The text is UTF-16",
            path=file,
            expected="UTF-8",
            found=f"the byte order mark {head[:2].hex(' ')}",
            hint="Give --encoding utf-16, or have PowerShell write UTF-8 by `Out-File -Encoding utf8`",
        )
    mark = len(_BYTE_ORDER_MARK)
    return block[mark:] if block[:mark].to_pybytes() == _BYTE_ORDER_MARK else block


def _lines_end(content: np.ndarray, begin: int) -> int:
    """The place behind the last line's end from `begin` on; 0 where no line ends there."""
    for first in (max(begin, len(content) - _TAIL_BYTES), begin):
        place = content[first:].tobytes().rfind(b"\n")
        if place >= 0:
            return first + place + 1
    return 0


def count_lines(block: pa.Buffer) -> int:
    """How many lines a block has, of which the last may lack its end."""
    content = np.frombuffer(block, np.uint8)
    return int(np.count_nonzero(content == _LINE_END)) + (len(content) > 0 and content[-1] != _LINE_END)


def line_spans(block: pa.Buffer) -> tuple[np.ndarray, np.ndarray]:
    """Where the lines of a block begin (int64[n]), and their bytes (int64[n]) without their ends: \\n or \\r\\n."""
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == _LINE_END)
    starts = np.concatenate([[0], ends + 1])
    sizes = ends - starts[:-1]
    sizes -= (sizes > 0) & (content[ends - 1] == _RETURN)
    if starts[-1] == len(content):
        return starts[:-1], sizes
    return starts, np.append(sizes, len(content) - starts[-1])


def ahead(pieces: Iterable[Piece], file: str) -> Iterator[pa.RecordBatch]:
    """The batches of a file's pieces. A pipe is read by the thread that Ctrl-C reaches."""
    return read_ahead(pieces, available_cores() if os.path.isfile(file) else 1)


def undecodable(file: str, error: UnicodeError, encoding: str) -> InvalidOptionError:
    """The error for text that is not in the `encoding` that the command names."""
    if isinstance(error, UnicodeDecodeError):
        found = f"bytes {error.object[error.start : error.end].hex(' ')} ({error.reason})"
        hint = None
    else:  # UTF-16 and UTF-32 raise it for their first bytes
        found = "no byte order mark"
        hint = f"Name the byte order: --encoding {codecs.lookup(encoding).name}-le"
    message = "The file is not in the encoding of --encoding"
    return InvalidOptionError(message, path=file, expected=encoding, found=found, hint=hint)


def unreadable(file: str, why: object) -> InvalidOptionError:
    """The error for a file that cannot be read."""
    if isinstance(why, pa.ArrowInvalid):
        why = reason_of(why)
    return InvalidOptionError(f"The file cannot be read: {why}", path=file, hint=HINT)
