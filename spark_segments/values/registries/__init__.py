"""Schema registries: over HTTP, in a directory, and as the records of the topic `_schemas`."""

from __future__ import annotations

from collections.abc import Mapping

from spark_segments.errors import InvalidOptionError
from spark_segments.values.registries.directory import DirectoryRegistry
from spark_segments.values.registries.http import HttpRegistry
from spark_segments.values.registries.registry import Registry


def open_registry(
    address: str, options: Mapping[str, str] | None = None, storage_options: Mapping[str, str] | None = None
) -> Registry:
    """The registry at an http(s) address, else in a directory. `options`: the options schema.registry.*."""
    if not address:
        raise InvalidOptionError("No registry was given", hint="Set schema.registry to its address or a directory")
    if address.startswith(("http://", "https://")):
        return HttpRegistry(address, options)
    return DirectoryRegistry(address, storage_options)
