"""Every error this package raises on purpose. All derive from SegmentsError."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection

RESTORE = "Run segments verify, and restore the file from a backup"
"""Hint of the errors for a damaged or missing file of the log."""


class SegmentsError(Exception):
    """The base of all errors of this package.

    It has, where known, the file (`path`), the `byte_position` in it, the `expected` and the `found` value there, and a
    `hint` for the caller's next step. `str()` shows all of them in one line.
    """

    _one_line: ClassVar = True

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        byte_position: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.byte_position = byte_position
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.path is not None:
            text += f" in {self.path}"
        if self.byte_position is not None:
            text += f" at position {self.byte_position}"
        facts = [("expected", self.expected), ("found", self.found)]
        details = ", ".join(f"{name} {value}" for name, value in facts if value is not None)
        if details:
            text += f": {details}"
        if self.hint is not None:
            text += f". {self.hint}"
        return text if text.isprintable() else escaped(text, one_line=self._one_line)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's workers to the driver by pickle, which would lose the keyword-only fields.
        # An ImportError has its path outside its dictionary.
        return _rebuild, (type(self), self.message), {**self.__dict__, "path": self.path}


# Orders to a terminal: C0 but tabs and line ends, DEL and C1; what turns the direction of a line; surrogates.
_UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_A_LINE = re.compile(f"[\t\n]|{_UNSAFE.pattern}")


def escaped(text: str, *, one_line: bool = False) -> str:
    """Text that others wrote as a terminal can be given it: what would be an order is shown as \\x1b or \\u202e."""
    unsafe = _UNSAFE_IN_A_LINE if one_line else _UNSAFE
    return unsafe.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escaped_bytes(data: bytes) -> bytes:
    """`escaped` for bytes: UTF-8, with bytes that are none as \\xff."""
    return escaped(data.decode(errors="backslashreplace")).encode()


def escaped_json(text: str) -> str:
    """JSON text with \\u in place of what `escaped` escapes: the same JSON."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _rebuild(cls: type[SegmentsError], message: str) -> SegmentsError:
    error = cls.__new__(cls)
    SegmentsError.__init__(error, message)
    return error


class CorruptBatchError(SegmentsError):
    """Bytes of a record batch, an index or a checkpoint are damaged: restore the file or skip its offsets."""


class NotLeaderError(SegmentsError):
    """The topic is a follower, or was fenced when another topic was promoted: write to the leader."""


class DivergedLogError(SegmentsError):
    """Two copies of a topic hold different records at the same offsets: say which side is to be cut."""


class CommitConflictError(SegmentsError):
    """Other commits came first in every attempt, or the plan no longer holds: run the job again."""


class TransactionOrderError(SegmentsError):
    """A transaction is not above the last one of its application and is no repeat of it: nothing was added. The hint
    says how the writer gets versions that rise.
    """


class VersionMismatchError(SegmentsError):
    """Driver and executors run different versions of this package: install the same on all of them."""


class InvalidOptionError(SegmentsError, ValueError):
    """An option, a configuration key, a name or an argument is wrong: the message says which values are right."""


class QueryError(InvalidOptionError):
    """A statement of SQL cannot be run: the message has the database's own words, which point into the statement."""

    _one_line = False


class InvalidTopicError(InvalidOptionError):
    """No topic can have this name: Kafka refuses it, or something else in the log directory has it."""


class UnknownTopicError(SegmentsError, LookupError):
    """No such topic or partition in this log directory."""


class TopicExistsError(SegmentsError):
    """A topic of this name is already there: choose another name or delete it first."""


class LogDirError(SegmentsError):
    """The location is no log directory, or a log directory of a format that this version cannot use."""


class FormatVersionError(LogDirError):
    """A topic's manifest, or a copy of it, has a format that this version does not read: newer, or of before the first
    release. It is not damaged, and nothing older may stand in for it.
    """


class ErasedRecordsError(SegmentsError):
    """A restore would bring records back that were erased: restore a later version, or say that they may come back."""


class RecordTooLargeError(SegmentsError, ValueError):
    """A record does not fit max.message.bytes: raise the topic's limit or drop the record."""


class InvalidRecordError(SegmentsError, ValueError):
    """The topic refuses a record, such as a record without key where the topic is compacted. Nothing was appended:
    correct the record, or the topic's configuration.
    """


class PolicyViolationError(SegmentsError):
    """The topic's cleanup.policy does not allow this: alter it first."""


class OffsetOutOfRangeError(SegmentsError):
    """The wanted offsets are no longer, or not yet, in the log: data may have been lost to retention."""


class StorageError(SegmentsError):
    """The file system failed after bounded retries, and nothing was committed: run the operation again."""


class UnknownOutcomeError(SegmentsError):
    """The store failed during a commit, which may have happened or may still happen.

    This is no StorageError: a caller who catches StorageError to send records again must not send these twice. An
    append with a transaction (txn) can be sent again, because it is added once. A job can be run again, because it
    plans from the current state.
    """


class MissingFileError(StorageError, FileNotFoundError):
    """A file that a snapshot names is gone: the snapshot is older than file.delete.delay.ms, or the file was lost."""

    @classmethod
    def gone(cls, path: str | None) -> MissingFileError:
        """The error for a file that a snapshot names and that is not there."""
        return cls(
            "A file that the log named when it was loaded is gone",
            path=path,
            hint="Vacuum deletes files file.delete.delay.ms after they left the log. Load the topic again, and raise "
            "that setting where reads take longer. A file that is still missing was lost: run segments verify",
        )


class MissingExtraError(SegmentsError, ImportError):
    """A package of an extra of spark-segments is not installed: the hint has the command that installs it."""

    def __init__(self, extra: str, needed_by: str, package: str) -> None:
        super().__init__(
            f"{needed_by} need the package {package}, which is not installed",
            hint=f"pip install 'spark-segments[{extra}]'",
        )


class UnsupportedSparkError(SegmentsError, ImportError):
    """spark-segments does not run with the installed version of PySpark: install another one."""


class RegistryError(SegmentsError):
    """The schema registry has no such schema, does not answer, or refuses: check schema.registry."""


class UnknownSchemaError(RegistryError, LookupError):
    """The schema registry has no schema of this id: the record was written with another registry."""


class ValueFormatError(SegmentsError, ValueError):
    """A key or value does not have its format: the message says what was found, where, and which option to set."""


class KernelsNotBuiltError(SegmentsError, ImportError):
    """The package has no compiled kernels, or older ones: run make kernels, or install the wheel in place of a zip."""


# The errors of libraries about a value that does not fit, and the parts that can be shown: no text of the value. The
# texts are Arrow's of versions 22 to 26. A text that is not here is not shown.
_SHOWN = tuple(
    (re.compile(pattern, re.DOTALL), shown)
    for pattern, shown in (
        (r"^JSON parse error: (Column\([^()]*\) changed from \w+ to \w+)", r"\1"),
        (r"^JSON parse error: (Column\([^()]*\) was specified twice)", r"\1"),
        (r"^JSON parse error: ([A-Za-z ,'{}\[\]:\\]+)", r"\1"),
        (r"^CSV parse error: .*?(Expected \d+ columns, got \d+)", r"\1"),
        (r"CSV conversion error to (\w+)", r"a field that is no \1"),
        (r"as a scalar of type (\w+(?:\[[^\]]*\])?)", r"text that is no \1"),
        (r"is not a valid (decimal)\d* number", r"text that is no \1"),
        (r"^Failed to parse value", "text that is no value of its type"),
        (r"^Failed to convert JSON to (\w+)", r"a value that is no \1"),
        (r"^Integer value -?\d+ (not in range: -?\d+ to -?\d+)", r"a number \1"),
        (r"was truncated converting to (\w+)", r"a number that would lose digits as \1"),
        (r"^(Casting from \S+ to \S+ would (?:lose data|result in out of bounds timestamp))", r"\1"),
        (r"precision", "a decimal that does not fit its precision"),
        (r"would cause data loss", "a decimal that would lose digits"),
        (r"^Could not convert .* with type (\w+): tried to convert to (\w+)$", r"a \1 where \2 is wanted"),
        (r"^(Expected bytes, got a '\w+' object)", r"\1"),
        (r"[Ii]nvalid UTF-?8|data is not UTF-8", "not UTF-8"),
        (r"^overflow|too large to convert", "a number that is too large"),
        (r"(not within the acceptable range of \[\d+, \d+\))", r"a time \1"),
        (r"widths must match", "bytes of another length"),
        (r"^failed to decode Protobuf message: .*?((?:invalid|unexpected|buffer|delimited) [a-z ]+)", r"\1"),
    )
)


def reason_of(error: BaseException) -> str:
    """Why a library refuses a value, without the value: errors, logs and Spark's pages must not show what records hold.

    Raise the new error `from None`: Python prints the text of a cause, too.
    """
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.partition(':')[0]} at character {error.pos}"
    if isinstance(error, UnicodeError):
        return "not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    tried = ((pattern.search(text), shown) for pattern, shown in _SHOWN)
    return next((match.expand(shown).strip() for match, shown in tried if match), "a value that does not fit its type")


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name most similar to `name`, None where none is similar enough to be meant."""
    import difflib  # a command that makes no mistake waits for no import of it

    close = difflib.get_close_matches(name, names, 1, 0.6)
    return close[0] if close else None
