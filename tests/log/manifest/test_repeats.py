"""Which append is a repeat, which is refused, and which is new: the rules for transactions, without a log."""

from __future__ import annotations

import dataclasses

import pytest

from spark_segments.errors import TransactionOrderError
from spark_segments.log.manifest.transaction import is_repeat
from verification.world.manifest_rows import Transaction


def batch(number, query="q1", *, application=None):
    return Transaction(application or query, number, query)


def test_the_first_transaction_and_higher_versions_are_new():
    assert not is_repeat(batch(0), None, "t")
    assert not is_repeat(batch(8), batch(7), "t")
    assert not is_repeat(Transaction("job", 8), Transaction("job", 7), "t")


@pytest.mark.rule("W10")
def test_a_job_may_send_its_last_version_again_and_no_earlier_version():
    assert is_repeat(Transaction("job", 7), Transaction("job", 7), "t")
    with pytest.raises(
        TransactionOrderError, match=r"Transaction 3 of job .*topic t.*version 7 again.*version 3.*once"
    ):
        is_repeat(Transaction("job", 3), Transaction("job", 7), "t")


def test_a_key_that_is_remembered_is_a_repeat_whenever_it_comes():
    first, again = (
        Transaction.named("landing/1", None),
        dataclasses.replace(Transaction.named("landing/1", None), version=1_700_000_000_000),
    )
    assert not is_repeat(first, None, "t")
    assert is_repeat(first, again, "t") and is_repeat(again, again, "t")


@pytest.mark.rule("W10")
def test_a_stream_may_send_its_last_batch_again_and_no_earlier_batch():
    assert is_repeat(batch(7), batch(7), "t")
    with pytest.raises(TransactionOrderError, match=r"Batch 6 .*q1.*topic t.*batch 7.*newest checkpoint"):
        is_repeat(batch(6), batch(7), "t")


@pytest.mark.rule("W11")
@pytest.mark.parametrize("version", [0, 7])
def test_batches_of_another_query_under_the_same_application_are_no_repeats(version):
    last = batch(7, "q1", application="copy")
    with pytest.raises(TransactionOrderError, match=r"copy.*another streaming query.*above 7.*txnAppId"):
        is_repeat(batch(version, "q2", application="copy"), last, "t")
    assert is_repeat(batch(7, "q1", application="copy"), last, "t")
    assert not is_repeat(batch(8, "q2", application="copy"), last, "t")


def test_a_batch_below_the_last_of_the_same_query_and_application_is_an_error():
    with pytest.raises(TransactionOrderError, match=r"Transaction 6 of copy.*version 7 again"):
        is_repeat(batch(6, "q1", application="copy"), batch(7, "q1", application="copy"), "t")


def test_where_a_query_is_not_known_the_version_decides():
    assert is_repeat(batch(7, "q2", application="copy"), Transaction("copy", 7), "t")
    assert is_repeat(Transaction("copy", 7), batch(7, "q1", application="copy"), "t")
