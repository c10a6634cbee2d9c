"""What add-ons provide to the core, by name: the core imports none of them.

`spark_segments/__init__.py` names the add-ons of this package, as text, so that each is imported when it is used. A
provider is given as "module:attribute".
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_segments.log.directory import LogDirectory
    from spark_segments.log.typed import TypedColumns

DIRECTORY_OPENERS: list[str] = []
"""Providers that are called with a `Storage` that is no log directory, and return its topics (`ReadOnlyTopics`) or
None."""

COLUMN_FORMATS: list[str] = []
"""The provider of typed keys and values: called with a `LogDirectory`, it returns its `TypedColumns`."""


def typed_columns(log: LogDirectory) -> TypedColumns:
    """The typed keys and values of the topics of a log directory."""
    columns: TypedColumns = loaded(COLUMN_FORMATS[-1])(log)
    return columns


def loaded(provider: str) -> Any:
    """The object that a provider's text names."""
    module, _, attribute = provider.partition(":")
    return getattr(import_module(module), attribute)
