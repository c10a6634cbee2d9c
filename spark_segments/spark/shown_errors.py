"""Errors as Spark shows them: a data source's comes with its traceback, whose last line is the message."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from spark_segments.errors import SegmentsError

Method = TypeVar("Method", bound=Callable[..., Any])


def without_traceback(method: Method) -> Method:
    """Spark shows the traceback of an error to the user: one that says all about itself is shown without."""

    @functools.wraps(method)
    def shown(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except SegmentsError as error:
            raise error.with_traceback(None) from None

    return shown  # type: ignore[return-value]
