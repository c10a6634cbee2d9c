"""Topics as lazy frames of Polars: `scan_topic`. Nothing else lives here. It needs the extra `polars`."""

from __future__ import annotations

from spark_segments.polars.scan import scan_topic

__all__ = ["scan_topic"]
