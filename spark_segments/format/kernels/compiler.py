"""numba's compiler for kernels, with what they do not need left out: compiling is most of a first call's time.

Nearly all of that time is Python's: numba infers the types of a kernel's lines many times over, and runs passes for
what kernels never have. No instruction that comes out of it differs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import numba.core.compiler
import numba.core.compiler_machinery
import numba.core.dispatcher
import numba.core.registry
import numba.core.targetconfig
import numba.core.typed_passes
import numba.core.types
import numba.core.typing
import numba.core.typing.templates
import numba.core.untyped_passes

_core: Any = numba.core  # much of it has no types
_CompilerBase: Any = _core.compiler.CompilerBase
_Flags: Any = _core.compiler.Flags
_FunctionCompiler: Any = _core.dispatcher._FunctionCompiler
_Context: Any = _core.typing.Context
_CPUTarget: Any = _core.registry.CPUTarget

_untyped, _typed = _core.untyped_passes, _core.typed_passes
# Of numba's passes those that kernels need: they have no closures, no `with`, no `raise` and no array expressions.
_PASSES = (
    _untyped.TranslateByteCode,
    _untyped.FixupArgs,
    _untyped.IRProcessing,
    _untyped.RewriteSemanticConstants,
    _untyped.GenericRewrites,
    _untyped.ReconstructSSA,
    _untyped.DeadBranchPrune,
    _typed.NopythonTypeInference,
    _typed.PreLowerStripPhis,
    _typed.NoPythonSupportedFeatureValidation,
    _typed.IRLegalization,
    _typed.AnnotateTypes,
    _typed.NativeLowering,
    _typed.NoPythonBackend,
)


class KernelPasses(_CompilerBase):  # type: ignore[misc]
    """The passes of a kernel, in numba's order."""

    def define_pipelines(self) -> list[Any]:
        """See numba's CompilerBase."""
        passes = _core.compiler_machinery.PassManager("kernel")
        for one in _PASSES:
            passes.add_pass(one, one.__name__)
        passes.finalize()
        return [passes]


class KernelFlags(_Flags):  # type: ignore[misc]
    """Settings of the compiler. numba compares them with each other at each look-up of a call."""

    __slots__ = ()
    __hash__ = _Flags.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._values == other._values)


class KernelFunctionCompiler(_FunctionCompiler):  # type: ignore[misc]
    """What compiles a kernel that Python calls."""

    def _customize_flags(self, flags: Any) -> Any:
        return KernelFlags(flags)


class _Typing(_Context):  # type: ignore[misc]
    """numba's context of types, which it shares all it knows with, and which remembers what a call's types came to.

    numba asks for the types of each `+` and each load again whenever it has learnt about a variable of the kernel, and
    each time goes through all that `+` can be: of strings, of sets, of numpy's functions.
    """

    __slots__ = ("_found",)  # not among what is shared

    def __init__(self, shared: Any) -> None:
        object.__setattr__(self, "__dict__", shared.__dict__)
        self._found: list[tuple[Any, dict[Any, Any]]] = []

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """See numba's Context."""
        if not isinstance(func, _core.types.BaseFunction):
            return super().resolve_function_type(func, args, kws)
        found = self._found_with(_core.targetconfig.ConfigStack.top_or_none())
        key = func, tuple(args), tuple(kws.items())
        if key in found:
            signature, implementation = found[key]
        else:
            signature = self._of_numbers(func, args, kws) or super().resolve_function_type(func, args, kws)
            if signature is None:
                return None
            implementation = func.get_impl_key(signature)
            found[key] = signature, implementation
        func._impl_keys[signature.args] = implementation  # as get_call_type leaves it: lowering asks for it
        return signature

    def _of_numbers(self, func: Any, args: Any, kws: Any) -> Any:
        """The signature that a function of numbers has in a list of them, or None."""
        if kws or all(isinstance(one, _core.types.Literal) for one in args):  # numba compares two known numbers itself
            return None
        args = tuple(map(_core.types.unliteral, args))
        if not all(isinstance(one, _core.types.Number | _core.types.Boolean) for one in args):
            return None
        for template in func.templates:
            if issubclass(template, _core.typing.templates.ConcreteTemplate):
                found = template(self)
                signature = found.apply(args, kws)
                if signature is not None:
                    func._impl_keys[signature.args] = found.get_impl_key(signature)
                    return signature
        return None

    def _found_with(self, flags: Any) -> dict[Any, Any]:
        """What was found by the same settings of the compiler: what a call is compiled to depends on them."""
        for known, found in self._found:
            if known == flags:
                return found
        self._found.append((None if flags is None else flags.copy(), {}))
        return self._found[-1][1]


class _Target(_CPUTarget):  # type: ignore[misc]
    """numba's target, with types by `_Typing`."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self._typing = _Typing(_core.registry.cpu_target.typing_context)

    @property
    def typing_context(self) -> Any:
        return self._typing

    @property
    def target_context(self) -> Any:
        return _core.registry.cpu_target.target_context


TARGET = _Target()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage is collected within. The compiler makes very many objects, and looking through them finds little."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
