"""In a log directory of very many topics, nothing looks at all of them that need not."""

from __future__ import annotations

import pytest

from spark_segments.errors import UnknownTopicError
from spark_segments.log.manifest.files.row_files import COLUMN_BYTES, _RowCache
from verification.world.chunk_rows import new_chunk
from verification.world.manifest_rows import SEGMENT_SCHEMA, Segment
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play


def test_an_error_names_the_first_topics_and_opens_no_others(log, limits):
    limits(NAMED_TOPICS=2)
    for name in "abcdef":
        log.create_topic(name)
    log.delete_topic("a")
    play = Play()
    with pytest.raises(UnknownTopicError, match=r"There are: b, c$"):
        opened(log, open_delta_log=play).topic("z").offsets()
    assert set(play.opened) == {"z", "a", "b", "c", "d"}


def test_a_name_that_no_other_can_collide_with_is_made_without_a_look_at_the_others(log):
    def directories(path, go):
        raise AssertionError("a listing of all topics")

    log = opened(log, PlayedFiles(directories=directories))
    log.create_topic("orders")
    with pytest.raises(AssertionError, match="a listing"):
        log.create_topic("all.orders")


@pytest.mark.proof
def test_rows_of_very_many_small_files_take_no_more_memory_than_the_cache_may():
    """A table of a row is some kilobytes, of which the values are the least."""
    limit = 100 * COLUMN_BYTES * len(SEGMENT_SCHEMA)
    cache = _RowCache(limit)
    for number in range(1000):
        cache.put(("log", "topic", f"{number}"), Segment.table([new_chunk()]))
    kept = [number for number in range(1000) if cache.get(("log", "topic", f"{number}")) is not None]
    assert 50 < len(kept) < 100 and kept == list(range(1000 - len(kept), 1000))
