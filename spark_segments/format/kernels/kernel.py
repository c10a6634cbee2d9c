"""A kernel: a function that numba compiles, on disk once for all processes, or into each kernel that calls it.

numba compiles a function that another function calls like one that Python calls: it optimises it, makes machine code
and a wrapper for Python, stores all that, and then compiles it into the caller once more. Kernels are small and call
each other much. So what a kernel calls is only translated here, and compiled with its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numba.core.codegen
import numba.core.compiler
import numba.core.compiler_lock
import numba.core.registry
import numba.core.sigutils
import numba.core.typing

from spark_segments.format.kernels.cache import KernelCache, cache_in_private_directory, name_apart
from spark_segments.format.kernels.compiler import (
    TARGET,
    KernelFlags,
    KernelFunctionCompiler,
    KernelPasses,
    collector_paused,
)

_core: Any = numba.core  # much of it has no types
_JITCodeLibrary: Any = numba.core.codegen.JITCodeLibrary
_CPUDispatcher: Any = numba.core.registry.CPUDispatcher


class _TranslatedCode(_JITCodeLibrary):  # type: ignore[misc]
    """LLVM's code of a function as numba has written it: it is optimised where it is linked into."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _Translation:
    """The identity of a translated function among numba's functions. Python cannot call it."""


class Kernel(_CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled for the types of each call, from Python or from another kernel."""

    targetdescr = TARGET

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        options = {"nopython": True, "boundscheck": None, **options}
        super().__init__(function, targetoptions=options, pipeline_class=KernelPasses)
        self._compiler = KernelFunctionCompiler(function, TARGET, self.targetoptions, self.locals, KernelPasses)
        self._translations: dict[Any, Any] = {}
        try:
            self._cache = KernelCache(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            cache_in_private_directory()
            self._cache = KernelCache(function)
        name_apart(self)

    def compile(self, sig: Any) -> Any:
        """See numba's Dispatcher."""
        with _core.compiler_lock.global_compiler_lock, collector_paused():
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """See numba's Dispatcher: what the types of a call from another kernel come to."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        # A number that stands in the caller's code is an int64 like any other: LLVM sees what it is.
        signature = self._translated(tuple(map(_core.types.unliteral, args))).signature
        name = self.py_func.__name__
        return _core.typing.make_concrete_template(f"CallTemplate({name})", name, [signature]), pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        """See numba's Dispatcher: what another kernel calls."""
        return self._translations[tuple(_core.sigutils.normalize_signature(sig)[0])].entry_point

    def _translated(self, args: tuple[Any, ...]) -> Any:
        with _core.compiler_lock.global_compiler_lock:
            if args not in self._translations:
                flags = KernelFlags()
                self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
                flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
                library = _TranslatedCode(self.targetctx.codegen(), self.py_func.__qualname__)
                library.enable_object_caching()
                result = _core.compiler.compile_extra(
                    self.typingctx,
                    self.targetctx,
                    self.py_func,
                    args=args,
                    return_type=None,
                    flags=flags,
                    locals=self.locals,
                    library=library,
                    pipeline_class=KernelPasses,
                )
                identity = _Translation()
                self.targetctx.insert_user_function(identity, result.fndesc, [result.library])
                self._translations[args] = result._replace(entry_point=identity)
            return self._translations[args]
