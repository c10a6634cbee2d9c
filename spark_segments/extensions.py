"""What add-ons provide to the core, by name: the core imports none of them.

`spark_segments/__init__.py` names the add-ons of this package, as text, so that each is imported when it is used.
Another package provides more in the same way.

`open_directory`: called with a `Storage` that is no log directory, returns its topics (`log.directory.ReadOnlyTopics`),
or None where it knows no such directory. The first that knows it counts.
`keys`: opens the indexes of keys of a log directory (`log.key_offsets.KeyProvider`). The last one counts.
`observe`: called with the name of a job and its arguments by name when a run of it begins; returns a function, which is
called with the report or the error that the run ends with, or None where nobody observes.
`values`: opens the formats of keys and values of a log directory (`log.typed.ValueProvider`). The last one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PROVIDERS: dict[str, list[str]] = {}


def provide(name: str, provider: str) -> None:
    """Adds a provider, given as "module:attribute"."""
    _PROVIDERS.setdefault(name, []).append(provider)


def providers(name: str) -> list[Any]:
    """What is provided under a name, in the order in which it was added."""
    loaded = []
    for provider in _PROVIDERS.get(name, ()):
        module, _, attribute = provider.partition(":")
        loaded.append(getattr(import_module(module), attribute))
    return loaded


def observed_job(job: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Has the runs of a job's function observed under the job's name, but for dry runs."""

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            import inspect  # not where the package is imported alone

            named = inspect.signature(function).bind(*args, **kwargs).arguments
            observers = [] if named.get("dry_run") else [observe(job, named) for observe in providers("observe")]
            ends = [end for end in observers if end is not None]
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                for end in ends:
                    end(error)
                raise
            for end in ends:
                end(result)
            return result

        return run

    return decorated
