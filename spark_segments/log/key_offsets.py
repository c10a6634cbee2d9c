"""Where records with some keys can be, as the core sees it.

A log directory is given an index of keys when it is opened. What it is, is an add-on's: the core asks it for ranges of
offsets, tells it of an erasure, and deletes the files that it does not need any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from spark_segments import extensions

if TYPE_CHECKING:
    from spark_segments.errors import SegmentsError
    from spark_segments.log.directory import LogDirectory
    from spark_segments.log.findings import Findings
    from spark_segments.log.manifest.state.snapshot import Snapshot
    from spark_segments.log.reading.clip import Offsets
    from spark_segments.log.typed import RecordField
    from spark_segments.storage import FileInfo


Key = bytes | str | int
"""A key: its bytes, text, which stands for its bytes in UTF-8, or a value of key.format."""


@dataclass(frozen=True, slots=True)
class KeyCoverage:
    """What a look-up of keys looked at. Together these are all offsets that were asked for: no answer is partial.

    `indexed_offsets`: offsets that the index answered for. `scanned_offsets`: offsets of which all keys are read, for
    no index has them, or a key is in most of them. `runs`, `index_bytes`: files of the index that were asked, and bytes
    that were read of them. `unreadable_runs`: files that are damaged or missing, whose offsets are scanned.
    `index_error`: why the index as a whole could not be read; "" where it could, and where there is none.
    """

    indexed_offsets: int = 0
    scanned_offsets: int = 0
    runs: int = 0
    index_bytes: int = 0
    unreadable_runs: int = 0
    index_error: str = ""

    def with_earlier(self, earlier: KeyCoverage) -> KeyCoverage:
        """What this look-up and an earlier one looked at together: this one was of offsets that the earlier left."""
        offsets = earlier.indexed_offsets + earlier.scanned_offsets
        return KeyCoverage(
            indexed_offsets=offsets - self.scanned_offsets,
            scanned_offsets=self.scanned_offsets,
            runs=earlier.runs + self.runs,
            index_bytes=earlier.index_bytes + self.index_bytes,
            unreadable_runs=earlier.unreadable_runs + self.unreadable_runs,
            index_error=self.index_error or earlier.index_error,
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, ready for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of offsets that have all records of some keys, and other records, and how they came about."""

    offsets: Offsets
    coverage: KeyCoverage

    @classmethod
    def scanned(cls, offsets: Offsets, why: str = "") -> KeyRanges:
        """All of the offsets: no index answers for them. `why`: why the index cannot be read, where there is one."""
        length = sum(end - start for ranges in offsets.values() for start, end in ranges)
        return cls(offsets, KeyCoverage(scanned_offsets=length, index_error=why))


class KeyOffsets(Protocol):
    """Where records with some keys can be in the topics of a log directory.

    It is believed for its version of a topic and later ones, as long as no commit since can have put records back. A
    miss costs time, and never a record: the scan compares the keys' bytes.
    """

    directory: str
    """The directory of the log directory that has its files: where there is none, there is no index."""

    def of_keys(self, snapshot: Snapshot, offsets: Offsets, keys: Sequence[bytes]) -> KeyRanges:
        """The ranges among `offsets`, which are clipped to the snapshot, that have all records of the keys."""

    def of_field(self, snapshot: Snapshot, offsets: Offsets, field: RecordField, values: Sequence[bytes]) -> KeyRanges:
        """As `of_keys`, of the records of which a field has any of the values, in its encoding."""

    def ranges_without(self, snapshot: Snapshot, offsets: Offsets, keys: Sequence[bytes]) -> Offsets:
        """Those of the ranges `offsets`, each as a whole, in which no record has any of the keys, as far as the index
        is believed for the snapshot. What it does not know, does not hold for it, or cannot be read is not among them.

        The records are those of read_uncommitted: of aborted and of open transactions, too. The index knows nothing of
        a file: bytes beside the offsets of its row, below the log start, in a file that left the log or that no row
        names may have records of the keys all the same.
        """

    def forget_erased(
        self, topic: str, *, keys: Sequence[bytes] | None = None, at_once: bool = False, version: int | None = None
    ) -> None:
        """Takes what was erased out of the indexes of a topic, after the last commit of an erasure. `keys`: those that
        were erased; None where nobody knows them, which costs all that was indexed before. `at_once`: the next vacuum
        deletes the files that leave them. `version`: that of the last commit, where the caller asks again and again; an
        index that was checked up to it is left alone. Raises StorageError, CommitConflictError, UnknownOutcomeError:
        the erasure can be run again. Raises FormatVersionError for an index of a newer format. An index that fails
        keeps no other one from forgetting: the first error is raised at the end.
        """

    def has_keys(self, topic: str, keys: Sequence[bytes], *, besides: Mapping[int, Collection[int]]) -> bool:
        """Whether an index of the topic has an entry of any of the keys, or of a key with the same hash, also of
        records that have left the log. `besides`: {partition: offsets whose entries do not count}. An index of a field
        has no keys: it may have one where it has entries of records that have left the log. So may an index that cannot
        be read.
        """

    def unneeded_files(self, topic: str, delay_ms: int, now_ms: int) -> tuple[list[FileInfo], list[SegmentsError]]:
        """The files of the indexes of a topic that nobody needs any more, and that left them longer than `delay_ms`
        ago; and the error of each index that cannot be read, whose files are not among them. The topic may be gone.
        """

    def topics(self) -> list[str]:
        """The topics that have files of indexes, sorted. Some of them may be gone."""

    def describe(self, snapshot: Snapshot) -> dict[str, Any]:
        """How far the indexes of a topic reach, and what they take: `key_index` of its keys, `field_indexes` by the
        names of fields. Empty where there is none.
        """

    def verify(self, snapshot: Snapshot, findings: Findings) -> None:
        """Compares the indexes of a topic with a scan of all that they have."""


class KeyProvider(Protocol):
    """What opens the indexes of a log directory. It can be pickled, and is cheap to import."""

    def open(self, log: LogDirectory) -> KeyOffsets:
        """The indexes of the topics in a log directory."""


def key_provider() -> KeyProvider:
    """The package's indexes of keys: a log directory that is given no others has these."""
    provider: KeyProvider = extensions.providers("keys")[-1]
    return provider


def normal_keys(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    """The keys sorted, each once."""
    return tuple(sorted(set(keys)))
