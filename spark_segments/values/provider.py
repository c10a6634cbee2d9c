"""What a log directory is given of this room when it is opened. Formats are imported when a key or value needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_segments.values.format_options import OPTIONS

if TYPE_CHECKING:
    from spark_segments.log import LogDirectory
    from spark_segments.values.typed import TypedColumns


class Provider:
    """The formats of this room."""

    options = OPTIONS

    def open(self, log: LogDirectory) -> TypedColumns:
        """The formats of the keys and values in a log directory."""
        from spark_segments.values.typed import TypedColumns

        return TypedColumns(log)


PROVIDER = Provider()
