"""The operations of commits, as Delta's history has them."""

from __future__ import annotations


class Operation:
    """What a commit did. A topic's role allows some of them, a follower replays some of them in its own way."""

    ALTER = "alter"
    APPEND = "append"
    CAPTURE = "capture"
    COMPACT = "compact"
    CREATE = "create"
    DELETE = "delete"
    DELETE_RECORDS = "delete-records"
    ERASE = "erase"
    FENCE = "fence"
    IMPORT = "import"
    MERGE_FILES = "merge-files"
    MIRROR = "mirror"
    PROMOTE = "promote"
    RESTORE = "restore"
    RETAIN = "retain"
    ROLL = "roll"
    VACUUM = "vacuum"

    OF_FILES = frozenset((MERGE_FILES, VACUUM))
    """Commits that change nothing of the log: how its rows lie in files, or rows that had left it."""

    BRINGING_BACK = frozenset((RESTORE, MIRROR))
    """Commits after which the log may lack records below its end, or have others there, although its start did not
    move. A mirror's may be any other commit at its leader."""

    LEAVING_OFFSETS = frozenset(
        (
            ALTER,
            APPEND,
            COMPACT,
            DELETE_RECORDS,
            ERASE,
            FENCE,
            MERGE_FILES,
            PROMOTE,
            RETAIN,
            ROLL,
            VACUUM,
        )
    )
    """Commits after which each offset below the log end of before has the record that it had, or none. Of all others,
    a restore, an import, a capture, a mirror and a rebuild among them, nobody can say so."""
