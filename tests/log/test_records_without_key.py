"""Records without a key and compacted topics: refused by every append, before anything of it is in the log."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidRecordError
from spark_segments.log.appending.append import append_target, commit_chunks
from verification.world.opened import opened
from verification.world.stores.played_log import Play
from verification.world.topics import Appender


@pytest.fixture
def prices(log: LogDir) -> LogDir:
    log.create_topic("prices", partitions=2, config={"cleanup.policy": "compact"})
    return log


def keyed(*keys: str | None, topic: str | None = None) -> pa.Table:
    columns = {"key": pa.array(keys, pa.string()), "value": pa.array([f"v{n}" for n in range(len(keys))])}
    if topic is not None:
        columns["topic"] = pa.array([topic] * len(keys))
    return pa.table(columns)


def ends(log: LogDir, topic: str = "prices") -> int:
    return sum(end for _, end in log.topic(topic).offsets().values())


@pytest.mark.rule("W12")
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_record_without_a_key_is_refused_by_name_and_nothing_of_its_append_is_there(log, policy):
    log.create_topic("prices", partitions=2, config={"cleanup.policy": policy})
    with pytest.raises(InvalidRecordError, match=r"Topic prices is compacted.*no key in row 3") as raised:
        log.topic("prices").append(keyed("a", "b", None, "c", None))
    assert "Give every row a key" in (raised.value.hint or "")
    assert ends(log) == 0
    assert log.topic("prices").snapshot.version == 0


def test_the_row_is_counted_over_all_batches_of_an_append(prices):
    batches = [*keyed("a", "b").to_batches(), *keyed("c", None).to_batches()]
    with pytest.raises(InvalidRecordError, match="no key in row 4"):
        prices.topic("prices").append(iter(batches))
    assert ends(prices) == 0


def test_the_row_is_counted_over_buffers_that_were_written_before(prices):
    """A small buffer is flushed at once: the first rows are encoded before the row without a key comes."""
    with Appender(prices.storage, lambda name: append_target(prices, name), topic="prices", buffer_bytes=1) as appender:
        appender.write(keyed("a", "b", "c").to_batches()[0])
        with pytest.raises(InvalidRecordError, match="no key in row 5"):
            appender.write(keyed("d", None).to_batches()[0])
    assert ends(prices) == 0


def test_rows_without_a_key_column_are_refused(prices):
    with pytest.raises(InvalidRecordError, match="no key in row 1"):
        prices.topic("prices").append(pa.table({"value": ["a"]}))


def test_a_tombstone_and_an_empty_key_are_records(prices):
    rows = pa.table({"key": ["a", ""], "value": pa.array([None, "x"], pa.string())})
    prices.topic("prices").append(rows)
    assert ends(prices) == 2


def test_of_several_topics_the_row_of_the_compacted_one_is_named(prices):
    prices.create_topic("clicks")
    rows = pa.concat_tables([keyed(None, None, topic="clicks"), keyed("a", None, topic="prices")])
    with (
        pytest.raises(InvalidRecordError, match=r"Topic prices.*no key in row 4"),
        Appender(prices.storage, lambda name: append_target(prices, name)) as appender,
    ):
        for batch in rows.combine_chunks().to_batches():
            appender.write(batch)
        appender.close()
    clicks = Appender(prices.storage, lambda name: append_target(prices, name))
    clicks.write(keyed("a", None, topic="clicks").combine_chunks().to_batches()[0])
    [written] = clicks.close()
    assert written.row_without_key == 2


def test_a_topic_that_is_deleted_by_time_takes_them(log):
    log.create_topic("clicks")
    log.topic("clicks").append(keyed(None, "a", None))
    assert ends(log, "clicks") == 3


def test_the_policy_of_the_log_directory_counts_where_the_topic_has_none(tmp_path):
    log = LogDir.create(str(tmp_path / "log"), defaults={"cleanup.policy": "compact"})
    log.create_topic("prices")
    with pytest.raises(InvalidRecordError, match="no key in row 1"):
        log.topic("prices").append(keyed(None))


def test_a_topic_that_becomes_compacted_between_the_write_and_the_commit_refuses_them(log):
    """The moment of the append is its commit: what is acknowledged there is not cleaned away for want of a key."""
    log.create_topic("prices")
    appender = Appender(log.storage, lambda name: append_target(log, name), topic="prices")
    appender.write(keyed("a", None).to_batches()[0])
    written = pickle.loads(pickle.dumps(appender.close()))  # as it travels from a task to the driver
    log.topic("prices").alter({"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError, match=r"prices.*no key in row 2"):
        commit_chunks(log, "prices", written)
    assert ends(log) == 0


def test_a_topic_that_becomes_compacted_between_two_tries_of_the_commit_refuses_them(log):
    play = Play()
    log = opened(log, open_delta_log=play)
    log.create_topic("prices")

    def altered_first(go):
        log.topic("prices").alter({"cleanup.policy": "compact"})
        go()

    play.commits(altered_first)
    with pytest.raises(InvalidRecordError, match="no key in row 2"):
        log.topic("prices").append(keyed("a", None))
    assert ends(log) == 0


def test_chunks_with_keys_alone_are_taken_by_a_topic_that_became_compacted(log):
    log.create_topic("prices")
    appender = Appender(log.storage, lambda name: append_target(log, name), topic="prices")
    appender.write(keyed("a", "b").to_batches()[0])
    log.topic("prices").alter({"cleanup.policy": "compact"})
    commit_chunks(log, "prices", appender.close())
    assert ends(log) == 2
