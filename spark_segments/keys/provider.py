"""What a log directory is given of this room when it is opened. The index is imported when a key is looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_segments.keys.look_up import KeyIndexes
    from spark_segments.log import LogDirectory


class IndexProvider:
    """The indexes of this room."""

    def open(self, log: LogDirectory) -> KeyIndexes:
        """The indexes of the topics in a log directory."""
        from spark_segments.keys.look_up import KeyIndexes

        return KeyIndexes(log)


PROVIDER = IndexProvider()
