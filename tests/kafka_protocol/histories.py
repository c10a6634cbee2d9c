"""python -m tests.kafka_protocol.histories --histories N [--seed S]: captures of a played broker against a model.

A history is appends, transactions, retention and compaction at the source, and captures by a broker that cuts, damages,
refuses and empties some of its answers, or whose capture is ended midway. Whatever was there when a capture ended is
here, at its offset, or a hole says that it was gone before; nothing else is here.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture, topic_capture
from spark_segments.log.manifest.holes import holes_of
from spark_segments.log.verification.verify import verify
from tests.kafka_protocol.played import FAULTS, Fault, PlayedViews, playing

Model = dict[tuple[int, int], str]
"""Values by partition and offset."""


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
    with tempfile.TemporaryDirectory() as directory:
        source, log = LogDir.create(f"{directory}/source"), LogDir.create(f"{directory}/log")
        partitions = chance.randint(1, 3)
        source.create_topic("orders", partitions, {"segment.bytes": "1048576"})
        here: Model = {}  # what must have been captured
        written: Model = {}
        faulty = chance.random() * 0.6

        def fault() -> Fault | None:
            return chance.choice(FAULTS) if chance.random() < faulty else None

        with playing(PlayedViews(source, fault)) as address:
            for _ in range(chance.randint(2, 6)):
                for _ in range(chance.randint(0, 4)):
                    _change(source, written, partitions, chance)
                there = _there(source, written)
                ends = {n: end for n, (_, end) in source.topic("orders").offsets().items()}
                if _captured(log, address, chance):
                    here |= {place: value for place, value in there.items() if place[1] < ends[place[0]]}
                    _check(log, source, here, written, ends)
        faults = [one.message for one in verify(log, deep=True).findings if "are missing" not in one.message]
        assert not log.topics() or not faults, faults


def _change(source: LogDir, written: Model, partitions: int, chance: random.Random) -> None:
    if chance.random() < 0.75:
        before = {n: end for n, (_, end) in source.topic("orders").offsets().items()}
        rows = [
            {"value": str(chance.getrandbits(40)), "partition": chance.randrange(partitions)}
            for _ in range(chance.randint(1, 12))
        ]
        source.topic("orders").append(rows)
        for row in rows:
            number = int(row["partition"])
            written[number, before[number]] = str(row["value"])
            before[number] += 1
    else:
        number = chance.randrange(partitions)
        start, end = source.topic("orders").offsets()[number]
        source.topic("orders").delete_records({number: chance.randint(start, end)})


def _there(source: LogDir, written: Model) -> Model:
    starts = {n: start for n, (start, _) in source.topic("orders").offsets().items()}
    return {place: value for place, value in written.items() if place[1] >= starts[place[0]]}


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


def _check(log: LogDir, source: LogDir, here: Model, written: Model, ends: dict[int, int]) -> None:
    found: Model = {}
    for batch in log.topic("orders").scan().to_reader():
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        for number, offset, value in zip(*columns, strict=True):
            assert (number, offset) not in found, f"{number}-{offset} is there twice"
            found[number, offset] = value.decode()
    lost = here.keys() - found.keys()
    assert not lost, f"lost: {sorted(lost)[:5]}"
    assert all(written[place] == value for place, value in found.items())
    snapshot = log.topic("orders").snapshot
    assert {row: end for row, (_, end) in log.topic("orders").offsets().items()} == ends
    holes = {
        (hole.partition, offset)
        for hole in holes_of(snapshot.states)
        for offset in range(hole.start_offset, hole.end_offset)
    }
    starts = {number: start for number, (start, _) in log.topic("orders").offsets().items()}
    gone = {place for place in written if starts[place[0]] <= place[1] < ends[place[0]]} - found.keys()
    holes = {place for place in holes if place[1] >= starts[place[0]]}  # below, nothing was ever here
    assert gone == holes, f"missing {sorted(gone - holes)[:5]}, said to be {sorted(holes - gone)[:5]}"


if __name__ == "__main__":
    sys.exit(main())
