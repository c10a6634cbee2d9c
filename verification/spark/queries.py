"""Queries of Spark that read streams of this package, on a machine of any speed."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from verification.world.clock import PATIENCE_SECONDS

NO_WORKER = "Python worker failed to connect back"
"""What Spark says where a stream's reader did not start within ten seconds, which no setting changes."""


def ended(query: StreamingQuery) -> None:
    """Waits for the end of a query that ends by itself."""
    assert query.awaitTermination(PATIENCE_SECONDS), query.status


def ran(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], object] = ended) -> StreamingQuery:
    """The query, once it was waited for. One whose reader did not start has done nothing: it is started again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        query = start()
        try:
            wait(query)
            return query
        except StreamingQueryException as error:
            if NO_WORKER not in str(error) or time.monotonic() > deadline:
                raise
