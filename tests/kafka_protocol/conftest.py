from __future__ import annotations

from collections.abc import Iterator

import pytest

from verification.kafka_protocol.broker import running_broker


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker. Topics of other tests are there, too."""
    with running_broker(tmp_path_factory.mktemp("broker") / "home") as address:
        yield address
