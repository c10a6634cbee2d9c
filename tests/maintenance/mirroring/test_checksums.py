"""Lists of checksums: what a mirror writes of its followers, and what verify finds by them."""

from __future__ import annotations

import json
from pathlib import Path

import crc32c
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import CorruptBatchError, InvalidOptionError, MissingFileError, StorageError
from spark_segments.maintenance import mirror, roll, vacuum, verify
from spark_segments.signed_lists import checksum_list, comparison, file_checksum
from verification.world.followers import TOPIC, appended, appended_often, led, mirrored
from verification.world.log_copies import copy_of
from verification.world.topics import later

NOTHING_COMPARED = "No file of the list of checksums is in the topic any more: nothing was compared"


@pytest.fixture
def leader(log) -> LogDir:
    led(log)
    appended_often(log, 6)
    roll(log, now_ms=later(log))
    appended(log, 3, first=18)
    log.create_topic("spread", 12)
    log.topic("spread").append(pa.table({"value": [b"x"] * 12, "partition": pa.array(range(12), pa.int32())}))
    return log


@pytest.fixture
def listed(leader, follower, tmp_path) -> Path:
    mirrored(leader, follower, checksums=tmp_path / "list")
    return tmp_path / "list"


def entries(file: Path) -> dict[str, tuple[int, str]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["path"]: (line["size"], line["crc32c"]) for line in lines if "path" in line}


def as_they_lie(log: LogDir) -> dict[str, tuple[int, str]]:
    paths = [path for path in Path(log.uri).rglob("*-*/*") if path.is_file() and "_" not in path.parts[-2]]
    contents = {str(path.relative_to(log.uri)): path.read_bytes() for path in paths}
    return {path: (len(content), f"{crc32c.crc32c(content):08x}") for path, content in contents.items()}


def messages(log: LogDir, file: Path, topics: list[str] | None = None) -> list[str]:
    return [finding.message for finding in verify(log, topics=topics, against=file).findings]


def test_the_list_has_every_file_of_the_followers_as_it_lies_there(follower, listed):
    assert entries(listed) == as_they_lie(follower)
    assert messages(follower, listed) == []


def test_the_next_list_reads_only_what_is_in_no_list_and_was_not_copied(leader, follower, listed, monkeypatch):
    appended(leader, 2, first=21)
    read: list[tuple[str, int | None]] = []
    monkeypatch.setattr(checksum_list, "checksums_of", lambda storage, files, *_, **__: read.extend(files) or [])
    mirrored(leader, follower, checksums=listed)
    assert read == []
    assert entries(listed) == as_they_lie(follower)


def test_a_list_of_followers_that_were_mirrored_without_one_is_read_from_them(leader, follower, tmp_path):
    mirrored(leader, follower)
    mirrored(leader, follower, checksums=tmp_path / "late")
    assert entries(tmp_path / "late") == as_they_lie(follower)
    Path(follower.uri, next(iter(as_they_lie(follower)))).unlink()
    (tmp_path / "late").unlink()
    with pytest.raises(MissingFileError):
        mirror(follower, leader=leader, checksums=tmp_path / "late")


@pytest.mark.cases(1)
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_flipped_byte_is_found(follower, listed, suffix):
    path = next(path for path in sorted(entries(listed)) if path.endswith(suffix) and entries(listed)[path][0])
    file = Path(follower.uri, path)
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    (finding,) = verify(follower, against=listed).findings
    assert (finding.message, finding.path) == ("The file is not that of the list of checksums", path)
    assert finding.expected != finding.found and "CRC-32C" in finding.expected


def test_a_file_of_a_shared_object_that_is_gone_is_found(follower, listed):
    path = next(path for path in entries(listed) if path.startswith("spread-shared/"))
    Path(follower.uri, path).unlink()
    assert messages(follower, listed) == ["A shared object is missing", "The file is missing"]
    assert messages(follower, listed, [TOPIC]) == []


def test_a_file_that_cannot_be_read_is_not_called_missing(follower, listed, monkeypatch):
    path = sorted(entries(listed))[0]
    crc_of_file = file_checksum.crc_of_file

    def away(storage, file, size, *also):
        if file == path:
            raise StorageError("The store does not answer", path=storage.location(file))
        return crc_of_file(storage, file, size, *also)

    monkeypatch.setattr(file_checksum, "crc_of_file", away)
    (finding,) = verify(follower, against=listed).findings
    assert (finding.message, finding.path) == ("The file cannot be read", path)
    assert "does not answer" in str(finding.found)


def test_a_list_is_gone_through_once_for_all_topics(follower, listed):
    class Counted(dict):
        times = 0

        def values(self):
            Counted.times += 1
            return super().values()

    one = checksum_list.ChecksumList.read(listed)
    compared = comparison.compare(follower, checksum_list.ChecksumList(one.topics, Counted(one.files)))
    assert len(compared.findings) == 2 and not any(findings.found for findings in compared.findings)
    assert Counted.times == 1


@pytest.mark.parametrize("bytes_at_a_time", [4, 10, 1 << 20])
def test_the_checksum_of_a_file_that_is_too_short_is_an_error(follower, limits, bytes_at_a_time):
    limits(READ_BYTES=bytes_at_a_time)
    follower.storage.write("some/file", b"0123456789")
    assert file_checksum.crc_of_file(follower.storage, "some/file", 10) == crc32c.crc32c(b"0123456789")
    with pytest.raises(
        CorruptBatchError, match=r"shorter.*some/file at position 10: expected 12 bytes, found 10 bytes"
    ):
        file_checksum.crc_of_file(follower.storage, "some/file", 12)


def test_a_backup_that_went_on_is_as_good_and_one_that_went_back_is_not(leader, follower, listed, tmp_path):
    before = copy_of(follower, tmp_path / "before")
    appended(leader, 3)
    roll(leader, now_ms=later(leader))
    mirrored(leader, follower)
    vacuum(follower, now_ms=later(follower))
    assert messages(follower, listed, [TOPIC]) == []
    assert messages(follower, listed, ["spread"]) == [NOTHING_COMPARED], "its only file was rolled"
    mirrored(leader, follower, checksums=tmp_path / "later")
    assert set(messages(before, tmp_path / "later", [TOPIC])) == {
        "The topic went back to a version before the list of checksums",
        "The log end is below that of the list of checksums",
    }


def test_a_topic_that_is_gone_or_another_one_is_found(leader, follower, listed, tmp_path):
    other = LogDir.create(str(tmp_path / "other"))
    other.create_topic(TOPIC)
    assert messages(other, listed) == [
        "The topic is not that of the list of checksums",
        NOTHING_COMPARED,
        "A topic of the list of checksums cannot be read",
    ]


def test_a_file_that_is_no_list_is_refused(follower, listed, tmp_path):
    listed.write_text(listed.read_text() + "{}\n")
    with pytest.raises(InvalidOptionError, match="no list of checksums"):
        verify(follower, against=listed)
