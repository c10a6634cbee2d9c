"""Random histories of a topic in Kafka, of several replicas, and here, with imports in between, against a plain
model.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.errors import LogDirError
from spark_segments.maintenance import compact, roll, verify
from tests.examples import examples
from tests.log.followed_logs import COMPACTED, DAY_MS, LATER_MS, table_of, values
from tests.log.golden_reads import tree
from verification.world.kafka_side import TOPIC, KafkaSide


class Play:
    """Kafka goes on, this side rolls, cleans and deletes; imports in between."""

    def __init__(self, place: Path) -> None:
        self.kafka = KafkaSide(place / "kafka")
        self.log = LogDir.create(str(place / "log"))
        self.had: dict[int, tuple[bytes, bytes | None]] | None = None  # Kafka's history at the last import
        self.is_cleaned = False
        self.now_ms = LATER_MS

    def grow(self, number: int) -> None:
        choice = random.Random(number)
        for _ in range(choice.randint(1, 3)):
            self.kafka.append(
                [(choice.choice([b"a", b"b", b"c", b"d"]), choice.random() < 0.7) for _ in range(number % 3 + 1)]
            )

    def grow_and_roll(self, number: int) -> None:
        self.grow(number)
        self.kafka.roll()

    def fail_over(self, number: int) -> None:
        self.kafka.fail_over(number % 3)

    def move_to_replica(self, number: int) -> None:
        choice = random.Random(number)
        bases = [batch.base_offset for _, batches in self.kafka.segments for batch in batches]
        self.kafka.move_to_replica([base for base in bases if choice.random() < 0.4])

    def clean_there(self, number: int) -> None:
        self.is_cleaned |= len(self.kafka.segments) > 1
        for _ in range(1 + number % 3):
            self.kafka.clean(merge=number % 2 == 0)

    def delete_records_there(self, number: int) -> None:
        self.kafka.delete_records(self.kafka.log_start_offset + number % 5)

    def roll_here(self, number: int) -> None:
        if self.had is not None:
            self.now_ms += DAY_MS
            roll(self.log, now_ms=self.now_ms)

    def clean_here(self, number: int) -> None:
        if self.had is not None:
            self.is_cleaned = True
            self.roll_here(number)
            compact(self.log, now_ms=self.now_ms)

    def delete_records_here(self, number: int) -> None:
        if self.had is not None:
            start, end = self.log.topic(TOPIC).offsets()[0]
            self.log.topic(TOPIC).delete_records({0: min(start + number % 5, end)})

    def import_it(self, number: int = 0) -> None:
        path = self.kafka.write()
        difference = self.first_difference()
        if difference is None:
            config = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "-1"}
            self.log.import_kafka(path, config=config)
            self.had = dict(self.kafka.history)
            self.check_equal()
            return
        before = tree(Path(self.log.uri))
        with pytest.raises(LogDirError, match="from offset") as error:
            self.log.import_kafka(path)
        assert tree(Path(self.log.uri)) == before
        found = int(re.search(r"from offset (\d+) on", str(error.value)).group(1))
        # What a cleaner took cannot be told apart, but it is of another leader, and every later offset differs, too.
        assert found == difference or (self.is_cleaned and found > difference)
        self.log.delete_topic(TOPIC)
        self.had = None

    def first_difference(self) -> int | None:
        if self.had is None:
            return None
        start, end = self.log.topic(TOPIC).offsets()[0]
        for offset in range(max(start, self.kafka.log_start_offset), min(end, self.kafka.log_end_offset)):
            if self.had[offset] != self.kafka.history[offset]:
                return offset
        return self.kafka.log_end_offset if end > self.kafka.log_end_offset else None

    def check_equal(self) -> None:
        start, end = self.log.topic(TOPIC).offsets()[0]
        assert (start, end) == (max(start, self.kafka.log_start_offset), self.kafka.log_end_offset)
        ours, theirs = values(self.log), self.kafka.records()
        assert all(self.kafka.history[offset] == record for offset, record in ours.items())
        if not self.is_cleaned:
            assert ours == {offset: record for offset, record in theirs.items() if offset >= start}
        self.check_table(start)
        assert [str(one) for one in verify(self.log, deep=True).findings] == []

    def check_table(self, start: int) -> None:
        newest = {key: value for offset, (key, value) in sorted(self.kafka.records().items()) if offset >= start}
        assert table_of(self.log, TOPIC) == {key: value for key, value in newest.items() if value is not None}

    def end(self) -> None:
        """What is here by now is cleaned, and shows what Kafka's side does."""
        self.import_it()
        if self.had is None:
            self.import_it()
        self.is_cleaned = True
        for _ in range(3):
            self.clean_here(0)
        self.check_table(self.log.topic(TOPIC).offsets()[0][0])


OFTEN = ("import_it", "grow", "grow_and_roll", "clean_there", "roll_here", "fail_over")
SELDOM = ("move_to_replica", "clean_here", "delete_records_there", "delete_records_here")
STEP = st.tuples(st.sampled_from([*OFTEN, *OFTEN, *SELDOM]), st.integers(0, 59))


@pytest.mark.proof
@examples(15)
@given(steps=st.lists(STEP, min_size=10, max_size=30))
def test_an_import_equals_kafkas_log_or_is_refused_at_the_first_difference(tmp_path_factory, steps):
    play = Play(tmp_path_factory.mktemp("play"))
    for action, number in steps:
        getattr(play, action)(number)
    play.end()
