"""Files that are numbered: who makes one, which of them counts, and how they go."""

from __future__ import annotations

import pytest

from spark_segments.errors import StorageError
from spark_segments.storage import Storage
from spark_segments.storage.numbered_files import NumberedFiles, NumberedListing


def _files(directory, **options) -> NumberedFiles:
    return NumberedFiles(Storage(str(directory)), "numbers", **options)


def test_a_number_is_given_once_and_the_highest_counts(tmp_path):
    files = _files(tmp_path)
    assert files.listing() == NumberedListing(0, {}, [])
    for number in (1, 2, 10):
        files.create(number, b"%d" % number)
    with pytest.raises(FileExistsError):
        files.create(2, b"again")
    listing = files.listing()
    assert (listing.newest, [*listing.numbers]) == (10, [1, 2, 10])
    assert [info.path for info in listing.before(9)] == [files.path(1), files.path(2)]
    assert files.storage.read(files.path(2)).to_pybytes() == b"2"


@pytest.mark.parametrize("name", ["1.json", f"{1:020d}.tmp", f"{0:020d}.json", f"{1:020d}.json.tmp", "x"])
def test_files_of_other_names_have_no_number(tmp_path, name):
    files = _files(tmp_path)
    files.storage.write(f"numbers/{name}", b"")
    assert [info.path for info in files.listing().others] == [f"numbers/{name}"]


def test_numbers_may_begin_at_zero(tmp_path):
    files = _files(tmp_path, first=0)
    assert files.listing().newest == -1
    files.create(0, b"")
    assert files.listing().newest == 0


def test_the_newest_is_looked_for_again_where_it_was_tidied_away_meanwhile(tmp_path):
    files = _files(tmp_path)
    files.create(1, b"old")

    def read(listing: NumberedListing) -> bytes:
        if listing.newest == 1:  # a slow reader: newer files have taken its place
            files.create(2, b"new")
            files.storage.delete(files.path(1))
        return files.storage.read(files.path(listing.newest)).to_pybytes()

    assert files.newest(read) == b"new"
    with pytest.raises(StorageError, match="gone as soon as found"):
        files.newest(lambda listing: files.storage.read("numbers/none"))
