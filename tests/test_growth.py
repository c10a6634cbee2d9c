"""The exponents and pictures of `python -m benchmarks growth`."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks._curves import Panel, picture
from benchmarks.growth import FITTED_S, LEAST_S, Growth

SIZES = (10, 32, 100, 316, 1000)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.5])
def test_the_exponent_is_that_of_the_curve_above_its_fixed_cost(exponent, fixed):
    costs = [fixed + 3.0 * (size / 1000) ** exponent for size in SIZES]
    assert Growth.of(SIZES, costs, LEAST_S, FITTED_S).exponent == pytest.approx(exponent, abs=0.02)


@pytest.mark.parametrize(("costs", "exponent"), [((0.01, 0.01, 0.02, 0.01, 0.015), 0.0), ((0.01,) * 4 + (0.06,), None)])
def test_what_hardly_grows_has_no_exponent(costs, exponent):
    assert Growth.of(SIZES, costs, LEAST_S, FITTED_S).exponent == exponent


def test_a_picture_is_xml_with_a_line_for_each_operation():
    panels = [Panel("by <size>", "MiB", {"read": [(1, 2.0), (10, 20.0)], "nothing": [(1, 0.0), (10, 0.0)]})] * 3
    found = ElementTree.fromstring(picture("a & b", panels, "ms"))
    assert [element.text for element in found.iter() if element.text == "read"] == ["read"] * 3
    assert "nothing" not in [element.text for element in found.iter()]
