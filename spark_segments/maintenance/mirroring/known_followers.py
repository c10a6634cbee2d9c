"""The followers that a leader knows: a mirror leaves a note at the leader for each topic that it follows.

Nothing goes by these notes but the account of a key, which names them: a follower has what its leader had. A note stays
when the follower becomes a leader or goes, since its files may be there for longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json

from spark_segments.storage import Storage

FOLLOWERS_DIRECTORY = "_followers"


def note_follower(leader: Storage, topic: str, uri: str) -> None:
    """Leaves the note that the log directory at `uri` follows a topic. Raises StorageError where it cannot."""
    name = hashlib.sha256(uri.encode()).hexdigest()[:32]
    with contextlib.suppress(FileExistsError):
        leader.create(f"{FOLLOWERS_DIRECTORY}/{topic}/{name}.json", json.dumps({"uri": uri}).encode())


def known_followers(leader: Storage, topic: str) -> list[str]:
    """The addresses of the log directories that have followed a topic of this name, sorted."""
    notes = leader.list(f"{FOLLOWERS_DIRECTORY}/{topic}")
    return sorted(json.loads(leader.read(note.path).to_pybytes())["uri"] for note in notes)
