"""python -m verification.kafka_protocol.histories --histories N [--seed S] [--beside] [--anew] [--store]: captures of a
played broker against a model.

A source is a log of appends and deleted records; ten histories each see some of its states, one after the other. A
history is captures by a broker that cuts, damages, refuses and empties some of its answers, or whose capture is ended
midway. Whatever was there when a capture ended is here, at its offset, or a hole says that it was gone before; nothing
else is here. Both logs are in memory.

With `--beside`, captures are suspended before one of their writes, between a chunk and its commit, say: another one
comes to its end meanwhile, or eight days pass in which vacuum runs, or both. With `--anew`, another cluster answers at
the address from some moment on, of whose topics the client learns ids, or the cluster's alone: what it has goes into a
branch, and what was captured before stays. With `--store`, the log is in a bucket behind a proxy that fails a part of
all requests: it refuses them, loses replies, cuts them, hangs up. A capture may end with the store's error then, and
the next one goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from spark_segments import LogDir
from spark_segments.errors import StorageError, UnknownOutcomeError
from spark_segments.kafka_protocol import CaptureOptions, capture
from spark_segments.kafka_protocol.capturing import partition_capture, topic_capture
from spark_segments.kafka_protocol.capturing.capture_options import Divergence
from spark_segments.kafka_protocol.serving.apis import VERSIONS, fetch
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.maintenance import vacuum, verify
from verification.kafka_protocol.played import FAULTS, Fault, PlayedViews, playing
from verification.world.clock import ORPHAN_AGE_MS, played_time
from verification.world.stores.memory_store import MemoryFiles, memory_log
from verification.world.stores.s3_server import BUCKET, s3_server
from verification.world.stores.store_proxy import (
    HALF_REPLY,
    HANG_UP,
    INTERNAL_ERROR,
    LOSE_REPLY,
    SLOW_DOWN,
    StoreProxy,
    store_proxy,
)

Model = dict[tuple[int, int], str]
"""Values by partition and offset."""

_SEEDS, _STATES = 10, 30
_ASLEEP_MS = ORPHAN_AGE_MS // 7 * 8
_TOO_LATE = (
    "was appended to while it was captured",
    "too old to be committed",
    "read too long ago to tell",
    "is already there",
)
"""What a capture may say that was suspended."""

_STORE_FAILURES = (SLOW_DOWN, INTERNAL_ERROR, LOSE_REPLY, HANG_UP, HALF_REPLY)
_METADATA = 3
WITHOUT_IDS = VERSIONS | {fetch.KEY: range(4, 13), _METADATA: range(10)}
"""Of a broker before 2.8, whose topics have no ids."""


class _KilledError(BaseException):
    """The end of a capture from outside."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.histories", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beside", action="store_true", help="captures are suspended, and others go on")
    parser.add_argument("--anew", action="store_true", help="another cluster comes under the address")
    parser.add_argument("--store", action="store_true", help="the log is in a bucket whose store fails now and then")
    arguments = parser.parse_args()
    if arguments.store and (arguments.beside or arguments.anew):
        parser.error("--store goes with neither --beside nor --anew: their clock is the one of a store in memory")
    with s3_server() if arguments.store else contextlib.nullcontext() as store:
        return _play(arguments, store)


def _play(arguments: argparse.Namespace, store: Mapping[str, str] | None) -> int:
    started = time.monotonic()
    happened: dict[str, int] = {}
    for number in range(arguments.histories):
        try:
            played = history(arguments.seed + number, beside=arguments.beside, anew=arguments.anew, store=store)
        except BaseException:
            print(f"history of seed {arguments.seed + number} failed", flush=True)
            raise
        for name, count in played.items():
            happened[name] = happened.get(name, 0) + count
    seconds = time.monotonic() - started
    print(f"{arguments.histories} histories in {seconds:.0f} s: all as the model says; {happened}")
    return 0


def history(
    seed: int, *, beside: bool = False, anew: bool = False, store: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Plays one history, and raises AssertionError where the capture is not what the model says. How often what
    happened. `store`: the options of the store that the log is on; in memory without.
    """
    chance = random.Random(seed)
    topic_capture.COMMIT_BYTES = chance.choice([1, 200, 256 << 20])  # after each answer, some, all
    partition_capture.FIRST_PAUSE_SECONDS = 0.001
    faulty = chance.random() * 0.6

    def fault() -> Fault | None:
        return chance.choice(FAULTS) if chance.random() < faulty else None

    source = _source(seed // _SEEDS, "/source")
    views, files = _Views(source.log, fault), _Files()
    has_ids = not anew or chance.random() < 0.5
    versions = VERSIONS if has_ids else WITHOUT_IDS
    known = patch("spark_segments.kafka_protocol.serving.server.VERSIONS", versions)
    with contextlib.ExitStack() as stack:
        stack.enter_context(known)
        if store is None:
            proxy, log = None, memory_log("/log", files)
            stack.enter_context(played_time("tables", files))
        else:
            proxy = stack.enter_context(store_proxy(store))
            log = LogDir.create(f"s3a://{BUCKET}/{seed}/log", proxy.options)
        address = stack.enter_context(playing(views))
        work = _Work(log, files, address, views, chance, source, proxy)
        work.play(chance.randint(2, 6), beside=beside, anew=anew)
        if beside or anew or store is not None:
            work.whole()
        for failure, count in {} if proxy is None else proxy.played.items():
            work.happened[failure] = count
        faults = [one.message for one in verify(work.log, deep=True).findings if "are missing" not in one.message]
        assert not work.log.topics() or not faults, faults
    return work.happened


class _Files(MemoryFiles):
    """`meanwhile` happens before a write to come, `writes` later: the process that writes stands still."""

    writes = 0
    meanwhile: Callable[[], None]

    def monotonic(self) -> float:
        """As `time.monotonic`: no clock of a machine stands still with a process."""
        return time.monotonic() + self.ahead_ms / 1000

    def time(self) -> float:
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ms * 1_000_000

    def replace(self, path: str, data: Any) -> None:
        self._stand_still()
        super().replace(path, data)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        self._stand_still()
        super().create(path, data, is_forced=is_forced)

    def _stand_still(self) -> None:
        self.writes -= 1
        if not self.writes:
            self.meanwhile()


@dataclass(slots=True)
class _Work:
    """The captures of a history. `here`: what must have been captured into each topic. `at`: the source's state."""

    log: LogDir
    files: _Files
    address: str
    views: _Views
    chance: random.Random
    source: _Source
    proxy: StoreProxy | None = None
    at: int = 0
    here: dict[str, Model] = field(default_factory=dict)
    sources: dict[str, _Source] = field(default_factory=dict)
    happened: dict[str, int] = field(default_factory=dict)
    was_suspended: bool = False
    is_failing: bool = False

    def play(self, captures: int, *, beside: bool, anew: bool) -> None:
        chance = self.chance
        self.at = chance.randrange(_STATES)
        moves_at = chance.randrange(1, captures) if anew else captures
        for number in range(captures):
            if number == moves_at:
                self._move()
            self.views.state = self.source.states[self.at]
            self.was_suspended, self.is_failing = False, self.proxy is not None
            if beside and chance.random() < 0.6:
                self.files.writes, self.files.meanwhile = chance.randint(1, 12), self._meanwhile
            steps = chance.randint(1, 6) if chance.random() < 0.3 else 1 << 30
            self._captured(steps)
            self.files.writes = 0
            self.at = min(self.at + chance.randint(0, 4), _STATES - 1)

    def whole(self) -> None:
        """A capture that nothing comes in the way of: it ends."""
        self.views.state = self.source.states[self.at]
        self.was_suspended, self.files.writes, self.is_failing = False, 0, False
        self._captured(1 << 30)

    def _move(self) -> None:
        """Another cluster is at the address, with another topic of this name."""
        self._count("another cluster")
        self.source = _source(self.chance.randrange(1 << 30), "/another")
        self.at = self.chance.randrange(_STATES)
        self.views.show(self.source.log)

    def _meanwhile(self) -> None:
        """What happens while a capture stands still."""
        self.was_suspended = True
        chance, suspended = self.chance, self.views.state
        if chance.random() < 0.7:
            self._count("captures beside a suspended one")
            self._captured(1 << 30, is_beside=True)
        if chance.random() < 0.5:
            self._count("eight days")
            self.files.ahead_ms += _ASLEEP_MS
            vacuum(self.log)
        assert self.views.state is suspended

    def _captured(self, steps: int, *, is_beside: bool = False) -> None:
        """A capture, which is ended after so many answers. What it gave is compared with the model."""
        topic = self.views.state.topic

        def step(done: int, total: int) -> None:
            nonlocal steps
            steps -= 1
            if not steps:
                raise _KilledError

        options = CaptureOptions(on_divergence=Divergence.BRANCH)
        try:
            with self._failing_store():
                report = capture(self.log, self.address, [topic], options, progress=step)
        except _KilledError:
            self._count("captures killed")
            return
        except (StorageError, UnknownOutcomeError):
            assert self.is_failing
            self._count("captures that the store ended")
            return
        was_suspended = self.was_suspended and not is_beside
        for failed in report.failed:
            if self.is_failing:
                assert f"s3://{BUCKET}/" in failed["error"], failed
                self._count("captures that the store ended")
                continue
            assert was_suspended and any(text in failed["error"] for text in _TOO_LATE), failed
            self._count("captures too late")
        if report.failed:
            return
        self._count("captures")
        [name] = report.topics
        assert self.sources.setdefault(name, self.source) is self.source, f"{name} has two topics in it"
        offsets = self.views.state.offset_bounds()
        there = {(number, offset) for number, bounds in offsets.items() for offset in range(*bounds)}
        self.here[name] = self.here.get(name, {}) | {place: self.source.values[place] for place in there}
        for other, source in self.sources.items():
            is_newest = other == name
            ends = {number: end for number, (_, end) in offsets.items()} if is_newest else None
            _check(self.log, other, self.here[other], source.values, ends)

    @contextlib.contextmanager
    def _failing_store(self) -> Iterator[None]:
        """A part of all requests fails within."""
        if self.proxy is None or not self.is_failing:
            yield
            return
        chance, share = random.Random(self.chance.random()), self.chance.choice([0.02, 0.1, 0.3])
        self.proxy.play(lambda _: chance.choice(_STORE_FAILURES) if chance.random() < share else None)
        try:
            yield
        finally:
            self.proxy.play(None)

    def _count(self, name: str) -> None:
        self.happened[name] = self.happened.get(name, 0) + 1


@dataclass(slots=True)
class _Source:
    """The topic orders of a log, its states one after the other, and the values that it ever had."""

    log: LogDir
    states: list[Snapshot]
    values: Model


@lru_cache(maxsize=2)
def _source(seed: int, uri: str) -> _Source:
    chance, source = random.Random(seed), _Source(memory_log(uri), [], {})
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

    def show(self, log: LogDir) -> None:
        """From now on, the topics of another log."""
        self.__dict__.pop("cluster_id", None)
        self.__init__(log, self._fault)  # type: ignore[misc]

    def names(self) -> list[str]:
        return [self.state.topic]

    def _snapshot(self, name: str) -> Snapshot:
        return self.state


def _check(log: LogDir, name: str, here: Model, written: Model, ends: dict[int, int] | None) -> None:
    """Compares a topic here with what must be there, what was ever written, and, where it is known, where it ends."""
    found: Model = {}
    for batch in log.topic(name).scan().to_reader():
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        for number, offset, value in zip(*columns, strict=True):
            assert (number, offset) not in found, f"{number}-{offset} is there twice"
            found[number, offset] = value.decode()
    lost = here.keys() - found.keys()
    assert not lost, f"lost: {sorted(lost)[:5]}"
    assert all(written[place] == value for place, value in found.items())
    topic = log.topic(name)
    if ends is None:
        return
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
