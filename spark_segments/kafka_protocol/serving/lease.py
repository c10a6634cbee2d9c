"""Who holds the groups of a log directory: one server at a time, by numbered files.

Who begins to hold does so under the number of its first file, which rises from holder to holder. A commit of a group
says under which, and none follows that of a later holder: a server that slept meanwhile moves no group back.

A file of `_serve/` is made only if its number is free, and the highest number says who holds. The holder makes the
next file before its time is over. Who finds that the highest has ended, or is older than LEASE_SECONDS by the store's
clock, may make the next. Whether a file counts is looked at afterwards, as with a commit of a group.
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


class Lease:
    """A server's claim to the groups of a log directory. Any number of threads may use it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files = NumberedFiles(storage, DIRECTORY)
        self._server = uuid.uuid4().hex
        self.number = 0
        """Under which this server has begun to hold the groups; 0: it never did."""
        self._least = 0
        self._taken: Moment | None = None
        self._asked: Moment | None = None
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
            newest = self.holder()
            is_own = newest is not None and newest.server == self._server
            if newest is None or is_own or newest.has_ended:
                is_free = True
            else:
                age_seconds = (self._storage.now_ms() - newest.modified_ms) / 1000
                is_free = age_seconds > LEASE_SECONDS + MARGIN_SECONDS
            # Above `_least`, too: a group has a commit of that number already, and takes none of a lower one.
            number = max(0 if newest is None else newest.number, self._least) + 1
            is_taken = is_free and not self._ended.is_set() and self._made(number)
            if is_taken and (not is_own or self.number <= self._least):
                self.number = number
            self._taken = begun if is_taken else None
            self._tell("" if newest is None or is_taken else newest.process)
            return is_taken

    def give_up(self, least: int) -> None:
        """Holds no more, until it is taken under a number above `least`: that of a commit that is in a group already,
        where `_serve/` was lost, or a copy of the log directory was made without it.
        """
        with self._lock:
            self._least, self._taken = max(self._least, least), None
            self._asked = None

    def keep(self) -> bool:
        """Takes the lease unless it is held, and renews it from now on in a thread, until it is lost or ended.

        The store is asked once in ASK_SECONDS at most.
        """
        if self.is_held():
            return True
        if self._asked is not None and self._asked.seconds_ago < ASK_SECONDS:
            return False
        self._asked = Moment.now()
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
                newest = self.holder()
                if newest is not None and newest.server == self._server:
                    self._made(newest.number + 1, has_ended=True)

    def holder(self) -> Holder | None:
        """Who made the file of the highest number; None where there is none."""

        def read(listing: NumberedListing) -> Holder | None:
            number = listing.newest
            return self._read(number, listing.numbers[number].mtime_ms) if number else None

        return self._files.newest(read)

    def _read(self, number: int, modified_ms: int) -> Holder:
        data = self._storage.read(self._files.path(number), 0, _MOST_BYTES).to_pybytes()
        try:
            said = json.loads(data)
            return Holder(number, said["server"], said["process"], bool(said["ended"]), modified_ms)
        except (ValueError, KeyError, TypeError):  # nobody's: its time counts all the same
            return Holder(number, "", "", False, modified_ms)

    def _made(self, number: int, *, has_ended: bool = False) -> bool:
        """Whether a file of this number is this server's, and the highest."""
        said = {"format.version": 1, "number": number, "server": self._server, "ended": has_ended}
        said["process"] = f"{socket.gethostname()}:{os.getpid()}"
        try:
            self._files.create(number, json.dumps(said).encode())
        except FileExistsError:  # another server's; or this one's, and the store lost its reply
            try:
                if self._read(number, 0).server != self._server:
                    return False
            except FileNotFoundError:
                return False
        listing = self._files.listing()
        if number % _KEPT == 0:
            self._storage.delete(info.path for info in listing.before(number - _KEPT))
        return listing.newest == number

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
