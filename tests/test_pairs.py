"""Operations in pairs, each on a topic that the other has changed: every reader sees what a plain model has.

A history that once went wrong is a line here: the mend of it taken out is found by that line (verification/mutants).
"""

from __future__ import annotations

import pytest

from verification.pairs.histories import History, pairs, play, triples

WITNESSES = {
    "an-active-segment-that-has-expired": "deleted: expire active",
    "an-erasure-after-partitions-were-added": "compacted: add partitions, erase",
    "a-tombstone-of-an-erasure-that-is-to-go": "compacted: erase, drop tombstones",
    "an-erasure-and-keys-that-decode-alike": "typed: erase",
    "an-erasure-and-a-key-that-nothing-decodes": "typed: erase last",
    "a-signed-list-of-files-that-are-gone": "deleted: sign, erase",
    "a-capture-of-what-was-erased-there": "captured: source erases, capture",
    "another-partitioner": "both: append, codec",
    "an-erasure-after-a-promotion": "archived: mirror, promote, erase",
    "a-rebuild-after-a-topic-was-made-again": "deleted: make again later, lose manifest",
    "an-append-after-a-commit-was-lost": "deleted: lose newest commit",
    "a-capture-from-the-midst-of-a-batch": "captured: source deletes records, capture",
    "an-import-of-another-replica": "imported: import replica",
    "an-import-behind-captures": "captured: import",
    "an-import-of-what-was-deleted-here": "imported: append, delete all records, source rolls, import",
    "an-export-and-a-roll-in-several": "deleted: export and import, roll small",
    "an-archive-read-in-place-of-its-topic": "archived: empty by size",
    "an-archive-after-partitions-were-added": "archived: add partitions, erase",
}
"""What met, and the shortest history in which it once went wrong."""

FIXED = (
    "deleted: roll, delete records",
    "compacted: compact, make again",
    "both: vacuum, mirror",
    "compacted: index on a header, compact, erase",
    "imported: source cleans, roll",
    "captured: append, capture",
    "captured: append, source erases",
    "captured: roll, import replica",
)
BY_STREAM = (
    "both: append by stream, append by stream",
    "deleted: append by stream, lose manifest, append by stream",
    "compacted: mirror, append by stream, promote, append by stream",
    "archived: append by stream, erase, append by stream",
    "deleted: append by stream, make again, append by stream",
    "both: append by stream, restore, append by stream",
)
"""Of a query whose sink is the topic."""

PARTS = 16


@pytest.mark.parametrize("line", WITNESSES.values(), ids=[*WITNESSES])
def test_what_once_went_wrong_goes_right(line):
    play(History.of_line(line))


@pytest.mark.parametrize("line", FIXED)
def test_two_operations_leave_what_the_model_has(line):
    play(History.of_line(line))


@pytest.mark.proof
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_operations_leaves_what_the_model_has(part):
    for history in [*pairs()][part::PARTS]:
        play(history)


@pytest.mark.proof
def test_three_operations_leave_what_the_model_has():
    for history in triples(100, seed=1):
        play(history, slow=True)


@pytest.mark.proof
def test_spark_sees_what_the_model_has(spark):
    """A batch, the latest view, a stream that goes on from a checkpoint of before the operations, and a sink."""
    for history in (*map(History.of_line, BY_STREAM), *triples(15, seed=2, spark=True)):
        play(history, session=spark)
