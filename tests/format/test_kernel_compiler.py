"""What kernels leave out of numba's compiler changes nothing in what is compiled."""

from __future__ import annotations

import gc
import itertools
import operator

import numpy as np
import pytest
from numba.core import errors, types
from numba.core.registry import cpu_target

from spark_segments.format.kernels import jit
from spark_segments.format.kernels.compiler import TARGET, collector_paused

OF_TWO = [
    "add",
    "sub",
    "mul",
    "floordiv",
    "truediv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and_",
    "or_",
    "xor",
    "iadd",
    "isub",
    "imul",
    "ilshift",
    "irshift",
    "iand",
    "ior",
    "ixor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]
FUNCTIONS = (*(getattr(operator, name) for name in OF_TWO), min, max)
OF_ONE = (operator.neg, operator.pos, operator.invert, operator.not_, abs, bool, int, float)
INTEGERS = (types.int64, types.uint64, types.int32, types.uint32, types.int16, types.uint8)
KINDS = (*INTEGERS, types.boolean, types.float64, types.literal(7), types.unicode_type)


def signature(context, function, arguments):
    context.refresh()
    try:
        return str(context.resolve_function_type(context.resolve_value_type(function), arguments, {}))
    except errors.TypingError:
        return "none"


@pytest.mark.parametrize("function", (*FUNCTIONS, *OF_ONE), ids=lambda one: one.__name__)
def test_a_call_has_the_types_that_numba_gives_it(function):
    for arguments in itertools.product(KINDS, repeat=1 if function in OF_ONE else 2):
        expected = signature(cpu_target.typing_context, function, arguments)
        for _ in range(2):  # found, and remembered
            assert signature(TARGET.typing_context, function, arguments) == expected


def test_no_garbage_is_collected_while_a_kernel_is_compiled(monkeypatch):
    states = []

    @jit.njit
    def doubled(number):
        return number * 2

    compiled = doubled._compiler.compile
    monkeypatch.setattr(
        doubled._compiler, "compile", lambda *types: (states.append(gc.isenabled()), compiled(*types))[1]
    )
    monkeypatch.setattr(doubled._cache, "load_overload", lambda *_: None)
    assert (doubled(4), states, gc.isenabled()) == (8, [False], True)


def test_the_collector_stays_as_it_was():
    with pytest.raises(ValueError, match="damaged"), collector_paused():
        raise ValueError("damaged")
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@jit.njit(_nrt=True)
def _squares(count):
    found = np.empty(count, np.int64)
    for number in range(count):
        found[number] = number * number
    return found


@jit.njit
def _sum(numbers):
    total = np.int64(0)
    for number in numbers:
        total += number
    return total


def test_a_kernel_that_makes_arrays_counts_references_and_others_take_them():
    assert _squares(5).tolist() == [0, 1, 4, 9, 16]
    assert _sum(_squares(5)) == 30
