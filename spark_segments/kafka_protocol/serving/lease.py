"""Who holds the groups of a log directory: one server at a time, by numbered files.

Who begins to hold does so under the number of its first file, which rises from holder to holder. A commit of a group
says under which, and none follows that of a later holder: a server that slept meanwhile moves no group back.

A file of `_serve/` is made only if its number is free, and the highest number says who holds. The holder makes the
next file before its time is over. Who finds that the highest has ended, or is older than LEASE_SECONDS by the store's
clock, may make the next. Whether a file counts is looked at afterwards: numbered_swap.py.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass

from spark_segments.errors import SegmentsError
from spark_segments.quantities import Moment
from spark_segments.storage import Storage
from spark_segments.storage.numbered_files import NumberedFiles, NumberedListing
from spark_segments.storage.numbered_swap import NumberedSwap, Reply, RequestOutcome, SentEntry, SwapLimits

DIRECTORY = "_serve"
LEASE_SECONDS = 15.0
"""How long a file holds. The holder itself trusts it for less: MARGIN_SECONDS are for clocks and their resolution."""
MARGIN_SECONDS = 3.0
RENEW_SECONDS = 4.0
ASK_SECONDS = 0.5
_KEPT = 16
_MOST_BYTES = 4096

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who made a file of the lease: its number, the server's id and process; `modified_ms` by the store's clock."""

    number: int
    server: str
    process: str
    has_ended: bool
    modified_ms: int


class LeaseFiles(NumberedFiles):
    """The files of the lease of a log directory."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, DIRECTORY)

    def holder(self) -> Holder | None:
        """Who made the file of the highest number; None where there is none."""

        def read(listing: NumberedListing) -> Holder | None:
            number = listing.newest
            return self._read(number, listing.numbers[number].mtime_ms) if number else None

        return self.newest(read)

    def _read(self, number: int, modified_ms: int) -> Holder:
        data = self.storage.read(self.path(number), 0, _MOST_BYTES).to_pybytes()
        try:
            fields = json.loads(data)
            return Holder(number, fields["server"], fields["process"], bool(fields["ended"]), modified_ms)
        except (ValueError, KeyError, TypeError):  # nobody's: its time counts all the same
            return Holder(number, "", "", False, modified_ms)


class LeaseSwap(NumberedSwap["Holder | None", bytes, bool]):
    """A file of the lease on its way, and whether it came to be the highest. It is tried once: a server that comes
    second holds nothing, and asks again later. `least`: a number that the file has to be above.
    """

    def __init__(self, files: LeaseFiles, server: str, *, least: int, has_ended: bool) -> None:
        super().__init__(SwapLimits(tries=1, looks=1, first_pause_seconds=0, longest_pause_seconds=0))
        self._files = files
        self._server = server
        self._least = least
        self._has_ended = has_ended

    def number_of(self, state: Holder | None) -> int:
        # A group has a commit of the number `least` already, and takes none of a lower one.
        return max(0 if state is None else state.number, self._least)

    def newest(self, state: Holder | None) -> Holder | None:
        return self._files.holder()

    def plan(self, state: Holder | None) -> bytes:
        fields = {
            "format.version": 1,
            "number": self.number_of(state) + 1,
            "server": self._server,
            "ended": self._has_ended,
            "process": f"{socket.gethostname()}:{os.getpid()}",
        }
        return json.dumps(fields).encode()

    def send(self, state: Holder | None, content: bytes) -> Reply[bool]:
        number = self.number_of(state) + 1
        self.sent.append(SentEntry(number, state, content))
        self._files.create(number, content)
        listing = self._files.listing()
        if number % _KEPT == 0:
            self._files.storage.delete(info.path for info in listing.before(number - _KEPT))
        if listing.newest == number:
            return Reply(RequestOutcome.MADE, True)
        return Reply(RequestOutcome.OVERTAKEN)

    def find(self, state: Holder | None) -> bool | None:
        """True where the number was taken by this server, whose reply the store lost, and is the highest."""
        is_own = state is not None and state.server == self._server
        return True if is_own and self.sent and self.number_of(state) == self.sent[-1].number else None

    def give_up(self, tries: int, failures: int, failure: Exception | None) -> bool:
        return False


class Lease:
    """A server's claim to the groups of a log directory. Any number of threads may use it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files = LeaseFiles(storage)
        self._server = uuid.uuid4().hex
        self.number = 0
        """Under which this server has begun to hold the groups; 0: it never did."""
        self._least = 0
        self._taken: Moment | None = None
        self._asked_at: Moment | None = None
        self._other = ""  # the process that holds the groups instead
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def is_held(self) -> bool:
        """Whether this server holds the groups, for now."""
        taken = self._taken
        return taken is not None and taken.seconds_ago < LEASE_SECONDS - MARGIN_SECONDS

    def take(self) -> bool:
        """Takes or renews the lease, and says whether it is held. Raises SegmentsError where the store fails."""
        with self._lock:
            # Before the request, not after it: the file may be made as soon as the request is sent, and its age counts
            # from then. A clock that starts at the reply would trust the lease longer than others do.
            #
            #   here      |begun      |reply                    |begun + 15 s - 3 s: trusts it no longer
            #   store         |file made                              |made + 15 s + 3 s: another server may take it
            begun = Moment.now()
            newest = self._files.holder()
            is_own = newest is not None and newest.server == self._server
            swap = self._swap()
            is_taken = self._may_take(newest) and swap.run(newest, swap.plan(newest))
            if is_taken and (not is_own or self.number <= self._least):
                self.number = swap.number_of(newest) + 1
            self._taken = begun if is_taken else None
            self._tell("" if newest is None or is_taken else newest.process)
            return is_taken

    def _may_take(self, newest: Holder | None) -> bool:
        """Whether this server may make the file after the newest."""
        if self._ended.is_set():
            return False
        if newest is None or newest.server == self._server or newest.has_ended:
            return True
        # Both times are the store's. By this machine's clock, which may be ahead, a lease that is held would seem over.
        age_seconds = (self._storage.now_ms() - newest.modified_ms) / 1000
        return age_seconds > LEASE_SECONDS + MARGIN_SECONDS

    def _swap(self, *, has_ended: bool = False) -> LeaseSwap:
        return LeaseSwap(self._files, self._server, least=self._least, has_ended=has_ended)

    def give_up(self, least: int) -> None:
        """Holds no more, until it is taken under a number above `least`: that of a commit that is in a group already,
        where `_serve/` was lost, or a copy of the log directory was made without it.
        """
        with self._lock:
            self._least = max(self._least, least)
            self._taken = None
            self._asked_at = None

    def keep(self) -> bool:
        """Takes the lease unless it is held, and renews it from now on in a thread, until it is lost or ended.

        The store is asked once in ASK_SECONDS at most.
        """
        if self.is_held():
            return True
        if self._asked_at is not None and self._asked_at.seconds_ago < ASK_SECONDS:
            return False
        self._asked_at = Moment.now()
        try:
            if not self.take():
                return False
        except SegmentsError as error:
            _logger.warning("the groups cannot be taken: %s", error)
            return False
        with self._lock:
            if self._renewing is None or not self._renewing.is_alive():
                self._renewing = threading.Thread(target=self._renew, daemon=True)
                self._renewing.start()
        return True

    def end(self) -> None:
        """Lets another server take the groups at once."""
        self._ended.set()
        with self._lock, suppress(SegmentsError):  # without it another server waits until the time is over
            if self.is_held():
                self._taken = None
                newest = self._files.holder()
                if newest is not None and newest.server == self._server:
                    swap = self._swap(has_ended=True)
                    swap.run(newest, swap.plan(newest))

    def _tell(self, other: str) -> None:
        if other and other != self._other:
            _logger.warning("the groups of %s are held by the server %s", self._storage.uri, other)
        self._other = other

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                if not self.take():
                    return
            except SegmentsError as error:
                _logger.warning("the groups could not be kept, and are tried again: %s", error)
