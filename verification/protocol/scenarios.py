"""Which processes meet in the model, how much may go wrong, and the faults that are planted in the protocol."""

from __future__ import annotations

from dataclasses import dataclass

from verification.protocol.model import Append, Compact, DeleteRecords, Fence, Program, Rules
from verification.protocol.state import Process, Row, State, Version, shared

TOPIC = Version(
    "create",
    0,
    "create",
    rows=(
        Row("first", 0, 2, ((0, "k=1"), (1, "j=1")), sealed=True),
        Row("second", 2, 3, ((2, "k=2"),), sealed=True),
        Row("active", 3, 4, ((3, "x=1"),)),
    ),
    log_start=0,
    log_end=4,
    first_dirty=0,
)
"""The topic as every scenario finds it: two sealed segments, where offset 0 is superseded, and a chunk."""


@dataclass(frozen=True)
class Scenario:
    """Processes that meet, and how many things may go wrong in all."""

    name: str
    programs: tuple[Program, ...]
    faults: int

    def start(self) -> State:
        return State((shared(TOPIC),), tuple(Process() for _ in self.programs), (), self.faults)

    def with_faults(self, faults: int) -> Scenario:
        return Scenario(self.name, self.programs, faults)


_A = Append("A", "a=1", transaction="app", lives=2)
_B = Append("B", "b=1")
_C = Compact("C")

SCENARIOS = (
    Scenario("two appenders", (_A, _B), 4),
    Scenario("a sender taken for dead", (_A, Append("A2", "a=1", transaction="app"), _B), 2),
    Scenario("an appender, compaction and deletion", (_A, _C, DeleteRecords("D", 1)), 2),
    Scenario("an appender and two compactions", (_B, _C, Compact("C2")), 2),
    Scenario("two appenders and a fence", (_A, _B, Fence("F")), 2),
    Scenario("two appenders, a compaction and a fence", (_A, _B, _C, Fence("F")), 1),
)

FAULTS = {
    "no look after a failure": Rules(looks_after_failure=False),
    "a conflict taken for proof that no try happened": Rules(looks_after_conflict=False),
    "a look at the latest version only": Rules(looks_at_all_versions=False),
    "a new commit id for each try": Rules(one_id_for_all_tries=False),
    "an error that says nothing was committed while a try may happen": Rules(knows_doubt=False),
    "no look before an error": Rules(looks_in_doubt=False),
    "no check of the transaction": Rules(checks_transaction=False),
    "a check of the transaction before the first try only": Rules(checks_transaction_each_try=False),
    "offsets of the first try for all tries": Rules(gives_offsets_again=False),
    "a check of the role before the first try only": Rules(checks_role_each_try=False),
    "a compaction that does not look at its rows again": Rules(checks_rows=False),
    "a commit that the library rebases in silence": Rules(swaps=False),
}
"""Faults planted in the protocol. Each must be found in one of the scenarios."""

MOST_FAULTS_TO_FIND = 2
"""So many things going wrong are enough to find each of them."""
