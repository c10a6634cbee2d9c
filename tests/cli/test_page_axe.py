"""The page and its browser for records in a real browser: axe finds nothing, nothing is too wide, links lead on."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.cli.page import serve as serving
from spark_segments.cli.page.browse import RecordPage, browse
from spark_segments.cli.page.render import page
from spark_segments.cli.page.serve import server
from spark_segments.log.groups.group import GroupLag
from tests.browser import Tab
from tests.cli.page_topics import DAY_MS, HOUR_MS, NOW_MS, partition
from tests.maintenance.rows import snapshot
from tests.maintenance.upkeep import busy_log

pytestmark = [
    pytest.mark.network,
    pytest.mark.proof,
]  # axe comes from npm, and a browser is installed where there is none

AXE = "axe-core@4.14.1"
ADDRESSES = {
    "front": "/",
    "records": "/records?topic=events&partition=0",
    "found": "/records?topic=events&partition=0&find=Ada",
    "together": "/records?topic=clicks",
    "field": "/records?topic=events&field=id=7",
    "explain": "/explain?topic=events&partition=0&offset=1",
    "topic": "/topic?topic=events",
    "record": "/record?topic=events&partition=0&offset=1",
    "error": "/records",
}


# Cells that are narrower than what they hold, which then lies over the next one.
CUT = """[...document.querySelectorAll("td, th, dd, summary > span")].filter((one) => one.checkVisibility()
  && getComputedStyle(one).display !== "inline" && one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe."""
    directory = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "install", "--silent", "--no-fund", AXE], cwd=directory, check=True, timeout=300)
    return (directory / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A log directory with work for every job, served: http://127.0.0.1:…"""
    log = busy_log(LogDir.create(str(tmp_path_factory.mktemp("page") / "log")))
    log.create_topic("events")
    values = [json.dumps({"id": number, "name": f"Ada <b>{number}"}).encode() for number in range(200)]
    log.topic("events").append(pa.table({"key": [b"user-%d" % (number % 9) for number in range(200)], "value": values}))
    log.topic("events").append(pa.table({"key": [b"x"], "value": [bytes(range(256))]}))
    log.create_topic("clicks", 2)
    log.topic("clicks").append([{"key": "k" * 300, "value": "\u202e of the right"}, {"key": "b", "value": None}])
    made = server(log, 0)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def violations(tab: Tab, axe: str) -> list[str]:
    """What axe finds, each as its rule and the first elements."""
    tab.call("Runtime.evaluate", expression=axe)
    found = tab.call(
        "Runtime.evaluate",
        expression="axe.run({rules: {'target-size': {enabled: true}}}).then((all) => "
        "JSON.stringify(all.violations.map((one) => [one.id, "
        "...one.nodes.slice(0, 3).map((node) => node.html)])))",
        awaitPromise=True,
        returnByValue=True,
    )
    return json.loads(found["result"]["value"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", list(ADDRESSES))
def test_axe_finds_no_violation_and_nothing_is_too_wide(browser, served, axe, name, width, dark):
    with browser.open(served + ADDRESSES[name], width, dark=dark) as tab:
        tab.ask("document.querySelectorAll('details').forEach((one) => one.open = true)")
        assert violations(tab, axe) == []
        assert tab.ask("document.documentElement.scrollWidth - innerWidth") <= 0
        assert tab.ask(CUT) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violation_in_a_page_of_warnings(browser, axe, tmp_path, dark):
    rows, last = partition(0, [1 << 20] * 3, [100] * 1001, first_ms=NOW_MS - 90 * DAY_MS, step_ms=HOUR_MS)
    made = snapshot("late", {"retention.ms": str(DAY_MS)}, rows, [last])
    lags = [GroupLag("a group with a name that is long", "late", 0, 5, 0, 1000, NOW_MS - HOUR_MS)]
    warnings = ["the disk is nearly full: 1 GiB of 100 GiB are free"]
    text = page("/data/log", [made], NOW_MS, warnings=warnings, lags=lags)
    (tmp_path / "page.html").write_text(text)
    with browser.open(tmp_path / "page.html", 390, dark=dark) as tab:
        tab.ask("document.querySelectorAll('details').forEach((one) => one.open = true)")
        assert violations(tab, axe) == []
        told = tab.ask("[...document.querySelectorAll('.warnings li')].map((one) => one.textContent)")
    assert told[0].startswith("the disk is nearly full")
    assert any(text.startswith("late-0: retain has been due for") for text in told)
    assert any(text.startswith("late-0: 1,001 chunks") for text in told)


def test_a_phone_begins_with_the_log_and_its_filters_are_one_touch_away(browser, served):
    height = "document.querySelector('.filters').getBoundingClientRect().height"
    with browser.open(served, 390) as tab:
        assert tab.ask("document.querySelector('[name=find]').checkVisibility()") is False and tab.ask(height) < 60
        tab.ask("document.querySelector('.filters summary').click()")
        assert tab.ask("document.querySelector('[name=find]').checkVisibility()") is True
        assert tab.ask("document.querySelectorAll('.growth path').length") > 0
    with browser.open(served, 1280) as tab:
        assert tab.ask("document.querySelector('[name=find]').checkVisibility()") is True


def test_links_and_the_form_lead_through_the_records(browser, served):
    """With the policy that the server sends: nothing that the page needs is blocked."""
    with browser.open(served) as tab:
        address = tab.ask("document.querySelector('#events-0 .browse a').href")
    with browser.open(address) as tab:
        assert tab.ask("document.querySelectorAll('.records tbody tr').length") == 50
        assert tab.ask("getComputedStyle(document.querySelector('.records')).borderCollapse") == "collapse"
        assert tab.ask("document.querySelector('.records .key code').offsetHeight") < 24  # "user-1" is one line
        fields = "new URLSearchParams(new FormData(document.querySelector('form'))).toString()"
        query = tab.ask(f"(document.querySelector('[name=find]').value = 'Ada <b>77', {fields})")
    with browser.open(f"{served}/records?{query}") as tab:
        assert tab.ask("document.querySelector('.records td:last-child code').textContent") == (
            json.dumps({"id": 77, "name": "Ada <b>77"})
        )


def test_a_search_goes_on_by_itself_to_the_log_start(browser, served, monkeypatch):
    """Each request looks at little. The script asks for more, until the log start or a page of records."""
    asked = []

    def browse_little(*arguments: Any, **named: Any) -> RecordPage:
        asked.append(named)
        return browse(*arguments, **named, most_bytes=1)

    monkeypatch.setattr(serving, "browse", browse_little)
    done = 'document.querySelector("#search").hidden'
    with browser.open(served + "/records?topic=events&partition=0&find=user-3") as tab:
        tab.call(
            "Runtime.evaluate",
            expression=f"new Promise((end) => {{ const look = () => {done} ? end() : setTimeout(look, 5); look(); }})",
            awaitPromise=True,
        )
        offsets = tab.ask('[...document.querySelectorAll(".records tbody a")].map((link) => Number(link.textContent))')
        text = tab.ask('document.querySelector(".found").textContent')
    assert len(asked) > 1
    assert offsets == [number for number in range(199, -1, -1) if number % 9 == 3]
    assert text.startswith(f"{len(offsets)} records found; that is all down to the log start.")
