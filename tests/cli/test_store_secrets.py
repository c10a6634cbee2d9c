"""Credentials of a store: no command shows them, whether it succeeds or the store refuses it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_segments import LogDir
from tests.log.test_store_life import PLANTED, assert_without_secrets
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import REFUSE, store_proxy

COMMANDS = (
    ("topic", "list"),
    ("describe", "orders"),
    ("topic", "history", "orders"),
    ("offsets", "orders"),
    ("consume", "orders"),
    ("explain", "orders", "--offset=0"),
    ("verify", "orders"),
    ("roll", "--dry-run"),
    ("compact", "--dry-run"),
    ("vacuum", "--dry-run"),
    ("describe", "--html={page}"),
    ("doctor",),
)


@pytest.mark.proof
@pytest.mark.parametrize("failure", [None, REFUSE])
def test_no_command_shows_credentials(
    failure,
    run,
    s3_options,
    tmp_path,
    limits,
    caplog,
):
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", "spark_segments")
    limits(STORE_ATTEMPTS=1)
    uri = f"s3a://{BUCKET}/{tmp_path.name}/log"
    with store_proxy({**s3_options, **PLANTED}) as proxy:
        log = LogDir.create(uri, proxy.options)
        log.create_topic("orders")
        log.topic("orders").append(pa.table({"value": [b"tea"]}))
        proxy.play(None if failure is None else lambda request: failure)
        given = [f"--storage={name}={value}" for name, value in (proxy.options).items()]
        for command in COMMANDS:
            verb = 2 if command[0] == "topic" else 1
            page = tmp_path / "page.html"
            ran = run(*command[:verb], uri, *(one.format(page=page) for one in command[verb:]), *given)
            assert (ran.code == 0) == (failure is None), (command, ran.error)
            assert_without_secrets(ran.text + ran.error)
            assert failure is None or "Traceback" not in ran.error
    assert_without_secrets(caplog.text)
    assert failure is not None or "orders" in page.read_text()
    assert_without_secrets(page.read_text() if page.exists() else "")
