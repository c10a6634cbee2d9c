"""What the model is made of: versions of a topic with the rows of one partition, processes that commit, late requests.

All values are tuples, so that two paths to the same state are seen to meet.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

LEADER, FENCED = "leader", "fenced"

Records = tuple[tuple[int, str], ...]
"""(offset, text) of each record. The text is `key=value`."""


class Row(NamedTuple):
    """A file of the partition: the records of [base, end) that it holds. Two files never have the same name."""

    name: str
    base: int
    end: int
    records: Records
    sealed: bool = False


class Version(NamedTuple):
    """A topic after a commit, and the commit: `commit_id`, the number of its try, its operation."""

    commit_id: str
    attempt: int
    operation: str
    rows: tuple[Row, ...]
    log_start: int
    log_end: int
    first_dirty: int
    transactions: frozenset[str] = frozenset()
    role: str = LEADER

    @property
    def records(self) -> Records:
        """What a reader of this version sees."""
        return tuple(record for row in self.rows for record in row.records if record[0] >= self.log_start)


class Try(NamedTuple):
    """A request to make the version after `base`."""

    base: int
    version: Version


class Process(NamedTuple):
    """Where a process is in its commit.

    `phase`: new, working (compaction, before it commits), read (it reads the log next), send (its request goes next),
    doubt (an error came after a try was sent), done. `life`: how often its caller has sent it. `base`: the version that
    it read last. `planned`: the version that it wants to make after `base`. `failures`: failed tries in a row while no
    other commit came first. `looks`: looks in doubt. `work`: the version that compaction read before it began to work.
    """

    phase: str = "new"
    life: int = 1
    sent: tuple[Try, ...] = ()
    base: int = -1
    planned: Version | None = None
    failures: int = 0
    looks: int = 0
    work: Version | None = None
    outcome: str = ""
    offsets: tuple[int, int] | None = None


class Late(NamedTuple):
    """A request whose sender was told nothing, and that the store may carry out at any time."""

    process: str
    request: Try


class State(NamedTuple):
    """All that there is. `faults`: how many more things may go wrong."""

    versions: tuple[Version, ...]
    processes: tuple[Process, ...]
    late: tuple[Late, ...]
    faults: int

    @property
    def latest(self) -> int:
        return len(self.versions) - 1


class Step(NamedTuple):
    """What happens next: a process and what it, or the store, does."""

    process: str
    what: str

    def __str__(self) -> str:
        return f"{self.process}: {self.what}"


@cache
def shared(version: Version) -> Version:
    """The same object for equal versions: states are compared by identity first."""
    return version
