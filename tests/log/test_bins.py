"""Neighbouring items in bins, against a plain statement of the rule."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.execution import in_bins

SIZES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(np.array), max_size=20)
LIMITS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(np.array)


def at_most(sizes, limits):
    return list(in_bins(sizes, lambda size: size, lambda _, total, size: bool((total + size > limits).any())))


def fits(items, limits):
    return bool((np.sum(items, axis=0) <= limits).all())


@given(SIZES, LIMITS)
def test_bins_are_all_items_in_order_and_within_the_limits(sizes, limits):
    bins = at_most(sizes, limits)
    assert [id(size) for each in bins for size in each] == [id(size) for size in sizes]
    assert all(len(each) == 1 or fits(each, limits) for each in bins)


@given(SIZES, LIMITS)
def test_a_bin_ends_only_before_an_item_that_does_not_fit(sizes, limits):
    for each, following in itertools.pairwise(at_most(sizes, limits)):
        assert not fits([*each, following[0]], limits)


@given(st.lists(st.integers(0, 9)), st.integers(0, 20))
def test_bins_of_a_least_size_have_it_but_for_the_last(sizes, least):
    bins = list(in_bins(sizes, lambda size: size, lambda _, total, size: total >= least))
    assert list(itertools.chain(*bins)) == sizes
    assert all(sum(each) >= least > sum(each[:-1]) or len(each) == 1 for each in bins[:-1])
