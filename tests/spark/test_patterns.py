"""Java's regular expressions in subscribePattern."""

from __future__ import annotations

import re

import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options.patterns import python_pattern


@pytest.mark.parametrize(
    ("java", "matches", "others"),
    [
        ("orders.*", ["orders", "orders-eu"], ["old-orders"]),
        (r"\p{Lower}+", ["orders"], ["Orders", "o1", ""]),
        (r"\p{Alpha}+-\p{Digit}{2}", ["eu-01"], ["eu-1", "e1-01"]),
        (r"[\p{Upper}_]+", ["A_B"], ["A-B"]),
        (r"[^\p{Upper}_]+", ["a-b"], ["A"]),
        (r"\P{Lower}+", ["AB-1"], ["a"]),
        (r"\p{L}\p{Lu}\pN", ["aB1"], ["ab1"]),
        (r"\p{IsAlphabetic}+", ["ab"], ["a1"]),
        (r"\p{javaLowerCase}+\p{Punct}", ["ab-", "ab."], ["ab"]),
        (r"\Qa.b\E-.", ["a.b-c"], ["axb-c"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"(?<env>dev|prod)-\k<env>", ["dev-dev"], ["dev-prod"]),
        (r"(?<!x)a", ["a"], ["xa"]),
        (r"(?i)orders\z", ["ORDERS"], ["ORDER"]),
        (r"a++b", ["aab"], ["a"]),
        (r"[]a]+", ["]a"], ["b"]),
        (r"\w+\.\d+", ["a_1.2"], ["a-1.2"]),
    ],
)
def test_a_pattern_of_java_matches_the_same_topics_here(java, matches, others):
    fullmatch = re.compile(python_pattern(java)).fullmatch
    assert [name for name in matches if not fullmatch(name)] == []
    assert [name for name in others if fullmatch(name)] == []


@pytest.mark.parametrize(
    ("java", "piece"),
    [
        (r"[a-z&&[^b]]", "a character class within another|&&"),
        (r"[a-d[m-p]]", "a character class within another"),
        (r"\p{InGreek}", r"\\p{InGreek}"),
        (r"[\P{Lower}]", r"\\P{Lower}"),
        (r"a\R", r"\\R"),
    ],
)
def test_a_pattern_without_translation_is_refused_by_name(java, piece):
    with pytest.raises(InvalidOptionError, match=f"({piece}) of Java's regular expressions has no translation"):
        python_pattern(java)


def test_what_is_no_pattern_is_an_error():
    with pytest.raises(ValueError):
        python_pattern("(")
