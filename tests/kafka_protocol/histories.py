"""python -m tests.kafka_protocol.histories --histories N [--seed S]: captures of a played broker against a model.

A source is a log of appends and deleted records; ten histories each see some of its states, one after the other. A
history is captures by a broker that cuts, damages, refuses and empties some of its answers, or whose capture is ended
midway. Whatever was there when a capture ended is here, at its offset, or a hole says that it was gone before; nothing
else is here. Both logs are in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from dataclasses import dataclass
from functools import lru_cache

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture, partition_capture, topic_capture
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import Hole
from spark_segments.maintenance import verify
from tests.kafka_protocol.played import FAULTS, Fault, PlayedViews, playing
from tests.log.memory_store import memory_log

Model = dict[tuple[int, int], str]
"""Values by partition and offset."""

_SEEDS, _STATES = 10, 30


class _KilledError(BaseException):
    """The end of a capture from outside."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_protocol.histories", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    for number in range(arguments.histories):
        try:
            history(arguments.seed + number)
        except Exception:
            print(f"history of seed {arguments.seed + number} failed", flush=True)
            raise
    print(f"{arguments.histories} histories in {time.monotonic() - started:.0f} s: all as the model says")
    return 0


def history(seed: int) -> None:
    """Plays one history, and raises AssertionError where the capture is not what the model says."""
    chance = random.Random(seed)
    topic_capture.COMMIT_BYTES = chance.choice([1, 200, 256 << 20])  # after each answer, some, all
    partition_capture.FIRST_PAUSE_SECONDS = 0.001
    source, log = _source(seed // _SEEDS), memory_log("/log")
    here: Model = {}  # what must have been captured
    faulty, at = chance.random() * 0.6, chance.randrange(len(source.states))

    def fault() -> Fault | None:
        return chance.choice(FAULTS) if chance.random() < faulty else None

    views = _Views(source.log, fault)
    with playing(views) as address:
        for _ in range(chance.randint(2, 6)):
            views.state = source.states[at]
            offsets = views.state.offset_bounds()
            ends = {number: end for number, (_, end) in offsets.items()}
            if _captured(log, address, chance):
                there = {(n, offset) for n, bounds in offsets.items() for offset in range(*bounds)}
                here |= {place: source.values[place] for place in there}
                _check(log, here, source.values, ends)
            at = min(at + chance.randint(0, 4), len(source.states) - 1)
    faults = [one.message for one in verify(log, deep=True).findings if "are missing" not in one.message]
    assert not log.topics() or not faults, faults


@dataclass(slots=True)
class _Source:
    """The topic orders of a log, its states one after the other, and the values that it ever had."""

    log: LogDir
    states: list[Snapshot]
    values: Model


@lru_cache(maxsize=1)
def _source(seed: int) -> _Source:
    chance, source = random.Random(seed), _Source(memory_log("/source"), [], {})
    partitions = chance.randint(1, 3)
    source.log.create_topic("orders", partitions, {"segment.bytes": "1048576"})
    for _ in range(_STATES):
        topic = source.log.topic("orders")
        source.states.append(topic.snapshot)
        if chance.random() < 0.75:
            ends = {number: end for number, (_, end) in topic.offsets().items()}
            rows = [
                {"value": str(chance.getrandbits(40)), "partition": chance.randrange(partitions)}
                for _ in range(chance.randint(1, 12))
            ]
            topic.append(rows)
            for row in rows:
                number = int(row["partition"])
                source.values[number, ends[number]] = str(row["value"])
                ends[number] += 1
        else:
            number = chance.randrange(partitions)
            topic.delete_records({number: chance.randint(*topic.offsets()[number])})
    return source


class _Views(PlayedViews):
    """The topic in one of its states."""

    state: Snapshot

    def names(self) -> list[str]:
        return [self.state.topic]

    def _snapshot(self, name: str) -> Snapshot:
        return self.state


def _captured(log: LogDir, address: str, chance: random.Random) -> bool:
    """Whether a capture came to its end."""
    steps = chance.randint(1, 6) if chance.random() < 0.3 else 1 << 30

    def step(done: int, total: int) -> None:
        nonlocal steps
        steps -= 1
        if not steps:
            raise _KilledError

    with contextlib.suppress(_KilledError):
        report = capture(log, address, ["orders"], progress=step)
        assert not report.failed, report.failed
        return True
    return False


def _check(log: LogDir, here: Model, written: Model, ends: dict[int, int]) -> None:
    found: Model = {}
    for batch in log.topic("orders").scan().to_reader():
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        for number, offset, value in zip(*columns, strict=True):
            assert (number, offset) not in found, f"{number}-{offset} is there twice"
            found[number, offset] = value.decode()
    lost = here.keys() - found.keys()
    assert not lost, f"lost: {sorted(lost)[:5]}"
    assert all(written[place] == value for place, value in found.items())
    topic = log.topic("orders")
    assert {number: end for number, (_, end) in topic.offsets().items()} == ends
    holes = {
        (hole.partition, offset)
        for hole in Hole.of(topic.snapshot.states)
        for offset in range(hole.start_offset, hole.end_offset)
    }
    starts = {number: start for number, (start, _) in topic.offsets().items()}
    gone = {place for place in written if starts[place[0]] <= place[1] < ends[place[0]]} - found.keys()
    holes = {place for place in holes if place[1] >= starts[place[0]]}  # below, nothing was ever here
    assert gone == holes, f"missing {sorted(gone - holes)[:5]}, said to be {sorted(holes - gone)[:5]}"


if __name__ == "__main__":
    sys.exit(main())
