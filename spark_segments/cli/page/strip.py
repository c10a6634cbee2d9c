"""Turns a partition's segments into the blocks of its strip.

A partition may have thousands of segments and a page thousands of partitions, so neighbouring segments that would be
hairlines are drawn as one block. A page has about BLOCKS_A_PAGE blocks, and a strip about MOST_BLOCKS at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS_A_PAGE = 16_000
LEAST_BLOCKS, MOST_BLOCKS = 8, 120

CLEAN, DIRTY, SEALED, ACTIVE = "clean", "dirty", "sealed", "active"
"""Kinds of segments: in the clean tail or the dirty head of a compacted partition, sealed in any other partition, or
active (a chunk; in Kafka's own directories the last segment)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring segments that are drawn as one block; mostly a single segment.

    `rows`: [start, end) among the partition's live rows. `clean_share`: the part of a dirty segment that is in the
    clean tail.
    """

    kind: str
    rows: tuple[int, int]
    log_bytes: int
    clean_share: float = 0.0

    @property
    def segments(self) -> int:
        return self.rows[1] - self.rows[0]


def blocks_a_strip(partitions: int) -> int:
    """The limit for `blocks` on a page with so many partitions."""
    return max(LEAST_BLOCKS, min(MOST_BLOCKS, BLOCKS_A_PAGE // max(partitions, 1)))


def blocks(segments: Sequence[Block], limit: int) -> list[Block]:
    """The segments as at most about `limit` blocks, in order.

    With more than `limit` segments, neighbours of the same kind are merged while they are no longer than 2 / `limit` of
    the strip. Two neighbouring blocks of a kind together are then longer than that. So there are at most `limit`
    blocks, plus a block for each change of kind.
    """
    if len(segments) <= limit:
        return list(segments)
    longest = 2 * sum(one.log_bytes for one in segments) / limit
    joined: list[Block] = []
    for one in segments:
        last = joined[-1] if joined else None
        if last is not None and _alike(last, one) and last.log_bytes + one.log_bytes <= longest:
            joined[-1] = Block(one.kind, (last.rows[0], one.rows[1]), last.log_bytes + one.log_bytes)
        else:
            joined.append(one)
    return joined


def _alike(one: Block, other: Block) -> bool:
    return one.kind == other.kind and not one.clean_share and not other.clean_share
