"""The operations of commits, as Delta's history has them."""

from __future__ import annotations


class Operation:
    """What a commit did. A topic's role allows some of them, a follower replays some of them in its own way."""

    ALTER = "alter"
    APPEND = "append"
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
    VACUUM = "vacuum"
