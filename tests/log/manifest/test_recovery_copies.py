"""Recovery copies: a checkpoint leaves all that the manifest says outside of it, in bounded time and space."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from spark_segments.errors import LogDirError
from spark_segments.log.manifest.manifest import CHECKPOINT_VERSIONS
from spark_segments.log.manifest.state.recovery_copy import COPIES_KEPT, read_recovery_copy
from spark_segments.storage import Storage
from verification.world.chunk_rows import TOPIC, leftovers, new_chunk, new_manifest, new_partitions
from verification.world.clock import ORPHAN_AGE_MS
from verification.world.manifest_rows import (
    Change,
    Manifest,
    TopicRow,
    commit_append,
    forget_rows,
    removed_by_retention,
)
from verification.world.stores.played_files import PlayedFiles

DIRECTORY = f"_recovery/{TOPIC}"


def busy(manifest: Manifest, versions: int = CHECKPOINT_VERSIONS) -> None:
    """Commits of several kinds, up to a version: appends with transactions, a removal, a deletion of records."""
    while manifest.snapshot().version < versions:
        number = manifest.snapshot().version
        if number % 7 == 5:
            manifest.commit(lambda at: removed_by_retention(at, at.live_of(0)[:1], 5))
        else:
            commit_append(manifest, [new_chunk(0), new_chunk(number % 3)], (f"app-{number % 4}", number))


def copies(manifest: Manifest) -> list[int]:
    names = (info.path.rpartition("/")[2] for info in manifest.storage.list(DIRECTORY))
    return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))


def lose_the_manifest(manifest: Manifest) -> None:
    shutil.rmtree(manifest.storage.location("_manifest"))
    forget_rows()


def test_a_copy_says_what_the_manifest_said_once_that_is_lost(tmp_path):
    manifest = new_manifest(tmp_path)
    busy(manifest)
    state = manifest.state()
    said, transactions = state.snapshot, state.last_transactions()
    rows = said.source.read(None).sort_by("path").combine_chunks()
    lose_the_manifest(manifest)

    copy = read_recovery_copy(manifest.storage, TOPIC)

    found = copy.snapshot
    assert (found.version, found.topic_row, found.committed_ms) == (said.version, said.topic_row, said.committed_ms)
    assert found.partitions.equals(said.partitions)  # log starts and ends, epochs, first dirty and last stable offsets
    assert found.source.read(None).sort_by("path").combine_chunks().equals(rows)
    assert {one.application: one for one in copy.transactions} == {one.application: one for one in transactions}
    assert len(copy.transactions) == 4


def test_a_copy_has_the_rows_that_a_deleted_topic_left(manifest):
    commit_append(manifest, [new_chunk()])
    manifest.delete()
    manifest.create(TopicRow("second", {}), new_partitions(2, "second"))
    manifest.merge_files()
    rest = leftovers(manifest.snapshot())
    lose_the_manifest(manifest)
    copy = read_recovery_copy(manifest.storage, TOPIC).snapshot
    assert leftovers(copy).equals(rest) and leftovers(copy).num_rows == 1
    assert (copy.topic_id, dict(copy.deleted_topics)) == ("second", {rest["topic_id"][0].as_py(): ""})


@pytest.mark.proof
def test_few_copies_stay_and_each_is_whole(manifest):
    busy(manifest, 5 * CHECKPOINT_VERSIONS)
    versions = copies(manifest)
    assert len(versions) == COPIES_KEPT and versions[-1] > 5 * CHECKPOINT_VERSIONS  # a merge came last
    named = set()
    for version in versions:
        assert read_recovery_copy(manifest.storage, TOPIC, version).snapshot.version == version
        index = json.loads(manifest.storage.read(f"{DIRECTORY}/{version:020d}.json").to_pybytes())
        named |= {f"{DIRECTORY}/{file['path']}" for file in index["files"]}
    there = {info.path for info in manifest.storage.list(DIRECTORY, recursive=True)}
    notes = {path for path in there - named if path.endswith((".note", ".made"))}
    assert there - named - notes == {f"{DIRECTORY}/{version:020d}.json" for version in versions}
    last = manifest.snapshot().version
    assert sorted({int(path[len(DIRECTORY) + 1 :][:20]) for path in notes}) == [*range(versions[0] + 1, last + 1)]


def test_a_copy_takes_only_files_that_are_not_there_yet(manifest):
    busy(manifest)
    manifest.merge_files()
    before = {info.path: info.mtime_ms for info in manifest.storage.list(DIRECTORY, recursive=True)}
    manifest.commit(lambda _: Change("alter", config={"retention.ms": "9"}))
    manifest.merge_files()
    after = {info.path: info.mtime_ms for info in manifest.storage.list(DIRECTORY, recursive=True)}
    assert len([path for path in after if "/kind=" in path and path not in before]) == 1  # the topic's row
    assert all(after[path] == before[path] for path in after.keys() & before.keys())


def test_a_crash_while_a_copy_is_written_leaves_the_one_before(manifest):
    busy(manifest)
    manifest.commit(lambda _: Change("alter", config={"retention.ms": "9"}))

    def killed(path, go):
        if path.endswith(".json") and "/_recovery/" in path:
            raise KeyboardInterrupt
        go()

    with pytest.raises(KeyboardInterrupt):
        Manifest(Storage(manifest.storage.uri, filesystem=PlayedFiles(replace=killed)), TOPIC).merge_files()
    assert read_recovery_copy(manifest.storage, TOPIC).snapshot.version == CHECKPOINT_VERSIONS


def test_a_copy_that_lacks_a_file_is_passed_over(manifest):
    busy(manifest)
    manifest.commit(lambda _: Change("alter", config={"retention.ms": "9"}))
    manifest.merge_files()
    [newest] = [file for file in manifest.log.state().files if file.kind == "topic"]
    manifest.storage.delete(f"{DIRECTORY}/{newest.path}")
    forget_rows()
    assert read_recovery_copy(manifest.storage, TOPIC).snapshot.version == CHECKPOINT_VERSIONS


def test_a_copy_that_cannot_be_written_fails_no_commit(tmp_path):
    def refused(*_):
        raise PermissionError("read-only")

    manifest = new_manifest(tmp_path, filesystem=PlayedFiles(replace=refused))
    busy(manifest)
    assert manifest.snapshot().version == CHECKPOINT_VERSIONS and copies(manifest) == []


def test_without_a_copy_there_is_a_clear_error(manifest):
    with pytest.raises(LogDirError, match="There is no recovery copy of topic orders"):
        read_recovery_copy(manifest.storage, TOPIC)
    busy(manifest)
    with pytest.raises(LogDirError, match=r"at version 3 .*copies of versions \[20\]"):
        read_recovery_copy(manifest.storage, TOPIC, 3)


def test_a_copy_of_a_newer_format_is_refused(manifest):
    busy(manifest)
    path = f"{DIRECTORY}/{CHECKPOINT_VERSIONS:020d}.json"
    index = json.loads(manifest.storage.read(path).to_pybytes())
    manifest.storage.replace(path, json.dumps({**index, "format.version": 2}).encode())
    with pytest.raises(LogDirError, match="newer version of this package"):
        read_recovery_copy(manifest.storage, TOPIC)


def there(manifest: Manifest) -> set[str]:
    return {info.path for info in manifest.storage.list(DIRECTORY, recursive=True)}


def make_old(manifest: Manifest, path: str, age_ms: int) -> None:
    seconds = (manifest.storage.now_ms() - age_ms) / 1000
    os.utime(manifest.storage.location(path).removeprefix("file://"), (seconds, seconds))


def test_files_that_no_copy_has_go_once_they_are_old(manifest):
    busy(manifest)
    before = there(manifest)
    old, young = (f"{DIRECTORY}/kind=segment/part-{name}.parquet" for name in ("old", "young"))
    for path, age_ms in ((old, ORPHAN_AGE_MS + 60_000), (young, ORPHAN_AGE_MS - 60_000)):
        manifest.storage.replace(path, b"left by a crash")
        make_old(manifest, path, age_ms)
    for path in before:
        make_old(manifest, path, 100 * ORPHAN_AGE_MS)

    dry = manifest.drop_old_versions(1 << 50, manifest.storage.now_ms(), dry_run=True)
    assert dry.paths == [old] and there(manifest) == {*before, old, young}
    manifest.drop_old_versions(1 << 50, manifest.storage.now_ms())

    assert old not in there(manifest) and young in there(manifest)
    assert before <= there(manifest) and read_recovery_copy(manifest.storage, TOPIC, CHECKPOINT_VERSIONS)


def test_files_stay_where_the_index_of_a_copy_cannot_be_read(manifest):
    busy(manifest)
    manifest.storage.replace(f"{DIRECTORY}/{3:020d}.json", b"{")
    lost = f"{DIRECTORY}/kind=segment/part-lost.parquet"
    manifest.storage.replace(lost, b"perhaps of version 3")
    make_old(manifest, lost, 2 * ORPHAN_AGE_MS)
    manifest.drop_old_versions(1 << 50, manifest.storage.now_ms())
    assert lost in there(manifest)
