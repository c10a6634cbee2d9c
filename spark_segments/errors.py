"""Every error this package raises on purpose. All derive from SegmentsError."""

from __future__ import annotations

RESTORE = "Run segments verify, and restore the file from a backup"
"""The hint for a file of the log that is damaged or missing."""


class SegmentsError(Exception):
    """The base of all errors of this package.

    Carries, where they are known, the file (`path`), the byte `position` in it, what was `expected` and `found` there,
    and a `hint`: what the caller should do next. `str()` shows all of them in one line.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.path is not None:
            text += f" in {self.path}"
        if self.position is not None:
            text += f" at position {self.position}"
        facts = [("expected", self.expected), ("found", self.found)]
        said = ", ".join(f"{name} {value}" for name, value in facts if value is not None)
        if said:
            text += f": {said}"
        if self.hint is not None:
            text += f". {self.hint}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's workers to the driver by pickle, which would lose the keyword-only fields.
        fields = (self.message, self.path, self.position, self.expected, self.found, self.hint)
        return _rebuild, (type(self), *fields)


def _rebuild(
    cls: type[SegmentsError],
    message: str,
    path: str | None,
    position: int | None,
    expected: object,
    found: object,
    hint: str | None,
) -> SegmentsError:
    error = cls.__new__(cls)
    SegmentsError.__init__(error, message, path=path, position=position, expected=expected, found=found, hint=hint)
    return error


class CorruptBatchError(SegmentsError):
    """Bytes of a record batch, an index or a checkpoint are damaged: restore the file or skip its offsets."""


class CommitConflictError(SegmentsError):
    """Another commit won every race, or the plan no longer holds: run the job again."""


class InvalidOptionError(SegmentsError, ValueError):
    """An option, a configuration key, a name or an argument is wrong: the message says which values are right."""


class UnknownTopicError(SegmentsError, LookupError):
    """No such topic or partition in this log directory."""


class TopicExistsError(SegmentsError):
    """A topic of this name is already there: choose another name or delete it first."""


class LogDirError(SegmentsError):
    """The location is not a log directory, or one of a format that this version cannot use."""


class RecordTooLargeError(SegmentsError, ValueError):
    """A record does not fit max.message.bytes: raise the topic's limit or drop the record."""


class InvalidRecordError(SegmentsError, ValueError):
    """A record that its topic refuses, such as a record without key where the topic is compacted; nothing was appended:
    correct the record, or the topic's configuration.
    """


class PolicyViolationError(SegmentsError):
    """The topic's cleanup.policy does not allow this: alter it first."""


class OffsetOutOfRangeError(SegmentsError):
    """The wanted offsets are not in the log any more (or not yet): data may have been lost to retention."""


class StorageError(SegmentsError):
    """The file system failed after bounded retries, and nothing was committed: run the same again."""


class UnknownOutcomeError(SegmentsError):
    """The store failed during a commit that may have happened, or may happen yet.

    No StorageError, so that whoever catches that to send records again does not send these twice. With a transaction
    (txn) the same append can be sent again: it is added once. A job can be run again: it plans from what is there.
    """


class MissingFileError(StorageError, FileNotFoundError):
    """A file that a snapshot names is gone: the snapshot is older than file.delete.delay.ms, or the file was lost."""


class MissingExtraError(SegmentsError, ImportError):
    """A package that an extra of spark-segments brings is not installed: the hint has the command."""

    def __init__(self, extra: str, needed_by: str, package: str) -> None:
        super().__init__(
            f"{needed_by} need the package {package}, which is not installed",
            hint=f"pip install 'spark-segments[{extra}]'",
        )


class RegistryError(SegmentsError):
    """A schema registry has no such schema, does not answer, or refuses: check schema.registry."""


class UnknownSchemaError(RegistryError, LookupError):
    """A schema registry has no schema of this id: it is not the registry that the record was written with."""


class ValueFormatError(SegmentsError, ValueError):
    """A key or value is not what its format says: the message says what was found, where, and what to set."""
