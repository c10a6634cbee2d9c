"""Numbers of versions are given once: none is committed on a version that vacuum took, or that was read long ago."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import time_ns

import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, StorageError, TopicExistsError, UnknownOutcomeError
from spark_segments.log.manifest.commit.committing import Committing
from spark_segments.log.manifest.files.delta.delta_log import COMMIT_LOG_MS, SURE_SECONDS, TRUSTED_SECONDS
from spark_segments.log.marker import mark
from spark_segments.maintenance import vacuum, verify
from verification.world.clock import played_time
from verification.world.manifest_rows import Change
from verification.world.opened import DeltaLog, opened
from verification.world.stores.memory_store import MemoryFiles, replayed
from verification.world.topics import rows, texts

PLAIN = partial(DeltaLog, open_table=replayed)


class PlayedTime:
    """`time` as versions see it. What asks for the wall clock in ms has this machine's."""

    time_ns = staticmethod(time_ns)

    def __init__(self) -> None:
        self.now_seconds = 1e9

    def monotonic(self) -> float:
        return self.now_seconds

    def time(self) -> float:
        return self.now_seconds


class PlayedFiles(MemoryFiles):
    """A store in memory where a test plays what happens before, or after, the next put of a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.after = lambda: None

    def create(self, path, data, *, is_forced=True):
        (before, self.before), (after, self.after) = (self.before, lambda: None), (self.after, lambda: None)
        before()
        super().create(path, data, is_forced=is_forced)
        after()


@pytest.fixture
def time() -> Iterator[PlayedTime]:
    played = PlayedTime()
    with played_time("tables", played):
        yield played


@pytest.fixture
def files() -> PlayedFiles:
    return PlayedFiles()


def open_log(files: MemoryFiles) -> LogDir:
    return opened("s3://bucket/log", files, open_delta_log=PLAIN)


@pytest.fixture
def log(files, time) -> LogDir:
    """A process that has appended to a topic, and has it open."""
    mark(open_log(files).storage)
    log = open_log(files)
    log.create_topic("orders", 1)
    log.topic("orders").append(rows("a"))
    return log


def appended_and_cut(files: MemoryFiles) -> None:
    """Others commit, make a checkpoint, and vacuum cuts what the open process has read from the log."""
    other = open_log(files)
    for number in range(3):
        other.topic("orders").append(rows(f"other {number}"))
    delta = other.topic("orders").manifest.log.delta
    delta.checkpoint()
    commits = delta.log_files().commits
    delta.delete(commits[version] for version in sorted(commits)[:-1])


def test_an_idle_process_does_not_commit_on_a_version_that_vacuum_took(log, files, time):
    appended_and_cut(files)
    time.now_seconds += COMMIT_LOG_MS / 1000
    assert log.topic("orders").append(rows("b")) == {0: (4, 4)}
    assert texts(open_log(files)) == ["a", "other 0", "other 1", "other 2", "b"]


@pytest.mark.rule("W6")
def test_a_process_that_stands_still_before_its_put_commits_on_no_version_that_vacuum_took(log, files, time):
    """It has looked, and wakes up after the log was cut."""
    manifest = log.topic("orders").manifest

    def stalled(snapshot) -> Change:
        if snapshot.version == 1:
            appended_and_cut(files)
            time.now_seconds += COMMIT_LOG_MS / 1000
        return Change("alter", config={"retention.ms": "5"})

    assert manifest.commit(stalled).snapshot_before.version == 4
    assert open_log(files).topic("orders").snapshot.version == 5


def test_a_put_that_is_late_in_a_log_that_was_cut_is_no_success(log, files, time):
    """The process stands still between its last look at the clock and the put: only afterwards it can tell."""

    def cut() -> None:
        appended_and_cut(files)
        time.now_seconds += COMMIT_LOG_MS / 1000

    files.before = cut
    with pytest.raises(UnknownOutcomeError, match="read too long ago to tell"):
        log.topic("orders").manifest.commit(lambda _: Change("alter", config={"retention.ms": "5"}))
    assert texts(open_log(files)) == ["a", "other 0", "other 1", "other 2"]
    assert open_log(files).topic("orders").append(rows("b")) == {0: (4, 4)}


def made_and_cut(files: MemoryFiles) -> None:
    """Others make the topic, with other settings, and vacuum cuts the commit that made it from the log."""
    open_log(files).create_topic("new", 2)
    delta = open_log(files).topic("new").manifest.log.delta
    open_log(files).topic("new").append(rows("other"))
    delta.checkpoint()
    delta.delete([delta.log_files().commits[0]])


@pytest.mark.rule("W6")
def test_a_process_that_stands_still_before_it_makes_a_topic_finds_that_others_made_it(files, log, time):
    def stalled(snapshot) -> Change:
        if snapshot.version < 0:
            made_and_cut(files)
            time.now_seconds += COMMIT_LOG_MS / 1000
            return Change("create", topic=log.topic("orders").snapshot.topic_row)
        assert snapshot.version == 1
        raise TopicExistsError("It is there")

    with pytest.raises(TopicExistsError, match="It is there"):
        committing = Committing(log.manifest("new").log, stalled, deleted=True, missing=True)
        committing.run(*committing.first_plan(committing.first_state()))
    assert 0 not in open_log(files).topic("new").manifest.log.delta.log_files().commits


def test_a_late_put_that_makes_a_topic_is_no_success_where_others_made_it(files, log, time):
    def cut() -> None:
        made_and_cut(files)
        time.now_seconds += COMMIT_LOG_MS / 1000

    files.before = cut
    with pytest.raises(UnknownOutcomeError, match="the topic, to be made, was read too long ago to tell"):
        log.create_topic("new", 1)
    assert open_log(files).topic("new").offsets().keys() == {0, 1}
    assert sum(end for _, end in open_log(files).topic("new").offsets().values()) == 1


def test_a_reply_that_is_late_in_a_log_that_was_not_cut_is_a_success(log, files, time):
    def late() -> None:
        time.now_seconds += SURE_SECONDS + 1

    files.after = late
    assert log.topic("orders").manifest.commit(lambda _: Change("alter", config={"retention.ms": "5"})).version == 2
    assert log.topic("orders").append(rows("b")) == {0: (1, 1)}


def test_an_open_process_looks_again_after_a_minute_whether_its_version_is_still_that_commit(log, files, time):
    """The log directory was deleted and made anew, and has come to the same version."""
    files.files.clear()
    mark(open_log(files).storage)
    other = open_log(files)
    other.create_topic("orders", 1)
    other.topic("orders").append(rows("x", "y"))
    time.now_seconds += TRUSTED_SECONDS + 1
    assert log.topic("orders").append(rows("b")) == {0: (2, 2)}
    assert texts(open_log(files)) == ["x", "y", "b"]


def test_what_an_open_process_trusts_is_looked_up_before_an_error_is_said_of_it(log, files):
    """Within that minute: the topic was made again, and altered, by others."""
    other = open_log(files)
    other.topic("orders").alter(partitions=2)
    assert log.topic("orders").append([{"value": "b", "partition": 1}]) == {1: (0, 0)}
    other.topic("orders").append(rows("c"), txn=("app", 1))
    assert log.topic("orders").append(rows("c"), txn=("app", 1)) == {}
    other.delete_topic("orders")
    other.create_topic("orders", 1)
    assert log.topic("orders").append(rows("d")) == {0: (0, 0)}
    assert texts(open_log(files)) == ["d"]


def test_a_version_that_a_listing_lacks_and_the_store_refuses_is_not_called_gone(files, log):
    version = log.topic("orders").version
    newest = f"{version:020d}.json"

    class Refusing(MemoryFiles):
        def read(self, path, offset, length):
            if path.endswith(newest):
                raise StorageError("503", path=path)
            return super().read(path, offset, length)

        def list(self, path, recursive):
            return [one for one in super().list(path, recursive) if not one[0].endswith(newest)]

    files = Refusing(files.files)
    with pytest.raises(StorageError, match="503"):
        open_log(files).topic("orders", version=version).offsets()
    with pytest.raises(InvalidOptionError, match=f"Version {version + 1} of topic orders is not there"):
        open_log(files).topic("orders", version=version + 1).offsets()


@pytest.mark.rule("W14")
def test_a_put_that_comes_eight_days_late_commits_no_file_that_vacuum_took(log, files, time):
    """No check of the process that stands still can know of it: vacuum takes the number before it deletes."""

    put = files.create

    def eight_days_late(path, data, **options) -> None:
        if "_delta_log" in path:
            files.create = put
            files.ahead_ms += 8 * 86_400_000
            time.now_seconds += 8 * 86_400
            assert sum(line["orphan_files"] for line in vacuum(open_log(files)).partitions) > 0
        put(path, data, **options)

    files.create = eight_days_late
    assert log.topic("orders").append(rows("b")) == {0: (1, 1)}  # its file is written anew
    assert texts(open_log(files)) == ["a", "b"]
    assert verify(open_log(files), deep=True).ok
