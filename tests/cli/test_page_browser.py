"""The page in a real browser: what its picture shows, and what its script does."""

from __future__ import annotations

import colorsys
import itertools
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from spark_segments.cli.page.render import page
from spark_segments.log.description import describe
from tests.cli.page_topics import DAY_MS, HOUR_MS, NOW_MS, partition, thousand_partitions
from tests.maintenance.rows import snapshot
from verification.world.kafka_bytes.golden_files import GOLDEN

pytestmark = [pytest.mark.network, pytest.mark.proof]  # a browser is installed where there is none

# {name: box in CSS pixels} of the strips.
BOXES = """Object.fromEntries([...document.querySelectorAll("details.row")].map((row) => {
  const box = row.querySelector(".strip").getBoundingClientRect();
  return [row.id, [box.left, box.top, box.right, box.bottom]];
}))"""
# What sticks out to the right.
OVERFLOW = """[...document.querySelectorAll("html, body *")].filter((one) => one.checkVisibility()
  && (one.getBoundingClientRect().right > innerWidth + 1 || one === document.documentElement
    && one.scrollWidth > innerWidth)).map((one) => one.outerHTML.slice(0, 200))"""
OPEN = 'document.querySelectorAll("details").forEach((one) => one.open = true)'


def topics():
    """Compacted at several ratios, and with retention; the smallest segments are a thousandth of their strip."""
    step = {"first_ms": NOW_MS - DAY_MS, "step_ms": HOUR_MS}
    compacted = [
        partition(0, [500_000, 300_000, 200_000, 400_000], [100_000], clean=2, **step),
        partition(1, [9_000, 1_000], [10_000], clean=0, **step),
        partition(2, [64 << 20, 32 << 20], [], clean=2, **step),
    ]
    deleted = [
        partition(0, [1 << 20] * 20, [300_000] * 3, **step),
        partition(1, [5_000_000, 5_000, 5_000], [2_000_000], **step),
        partition(2, [], [1234], **step),
        partition(3, [], [], **step),
        partition(4, [1 << 20] * 119, [60 << 20], **step),
    ]
    return [
        snapshot(name, config, [one for rows, _ in made for one in rows], [last for _, last in made])
        for name, config, made in (
            ("prices", {"cleanup.policy": "compact"}, compacted),
            ("orders", {"retention.ms": str(20 * HOUR_MS)}, deleted),
        )
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "small.html"
    long = snapshot("x" * 249, {}, [], [partition(0, [], [], first_ms=0, step_ms=0)[1]])
    file.write_text(page("s3://bucket/" + "long" * 60, [*topics(), long], NOW_MS))
    return file


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "thousand.html"
    file.write_text(page("/data/log", thousand_partitions(), NOW_MS))
    return file


def kinds(picture: Image.Image, box: list[float]) -> Counter[str]:
    """How many pixels of a box have the colour of which kind, by hue; grey and the page's own colours are none."""
    left, top, right, bottom = (round(edge) for edge in box)
    found: Counter[str] = Counter()
    for count, (red, green, blue) in picture.crop((left, top + 1, right, bottom - 1)).getcolors(1 << 24) or []:
        hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        if saturation > 0.15 and value > 0.3:
            name = next((kind for kind, (low, high) in HUES.items() if low <= hue * 360 < high), None)
            if name is not None:
                found[name] += count
    return found


DARK = {"name": "prefers-color-scheme", "value": "dark"}
HUES = {"dirty": (20, 50), "clean": (150, 180), "sealed": (205, 225), "active": (240, 270)}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_a_strip_has_the_colours_in_the_proportions_that_describe_gives(browser, small, width, dark):
    with browser.open(small, width, 3000, dark=dark) as tab:
        picture, boxes = tab.picture(), tab.ask(BOXES)
    for made, config in topics():
        for one in describe(made, config)["partitions"]:
            name = f"{made.topic}-{one['partition']}"
            found = kinds(picture, boxes[name])
            sealed = sum(found[kind] for kind in ("clean", "dirty", "sealed"))
            live = made.live_of(one["partition"])
            chunk_bytes = sum(row.log_bytes for row in live if row.state == "chunk")
            if not live:
                assert found.total() < 200  # the edges of the letters of "no segments"
                continue
            # A hairline is as wide as can be seen: so much more than their share are they all.
            least = min(3 / (boxes[name][2] - boxes[name][0]), 0.004)
            error = 0.02 + sum(max(0.0, least - row.log_bytes / one["size_bytes"]) for row in live)
            assert found["active"] / found.total() == pytest.approx(chunk_bytes / one["size_bytes"], abs=error), name
            if one["dirty_ratio"] is None:
                assert found["sealed"] == sealed, name
            else:
                assert found["dirty"] / sealed == pytest.approx(one["dirty_ratio"], abs=error), name
                assert found["sealed"] == 0, name


def test_light_and_dark_schemes(browser, small):
    for dark in (False, True):
        with browser.open(small, dark=dark) as tab:
            red, green, blue = tab.picture().getpixel((2, 2))
        assert (max(red, green, blue) < 40) is dark
        assert (min(red, green, blue) > 240) is not dark


def test_print_is_light(browser, small):
    with browser.open(small, dark=True) as tab:
        tab.call("Emulation.setEmulatedMedia", media="print", features=[DARK])
        picture = tab.picture()
    assert min(picture.getpixel((2, 2))) > 240
    dark = sum(count for count, colour in picture.convert("L").getcolors() or [] if colour < 40)
    assert dark < 0.05 * picture.width * picture.height


def test_nothing_is_cut_on_paper(browser, small):
    with browser.open(small, 718) as tab:  # A4, less its margins
        tab.call("Emulation.setEmulatedMedia", media="print")
        assert tab.ask(OVERFLOW) == []


def test_kinds_differ_without_colour(browser, small):
    """In grey, dirty and active blocks have lines, others have none, and clean is darker than sealed."""
    with browser.open(small, height=1400) as tab:
        picture, boxes = tab.picture().convert("L"), tab.ask(BOXES)

    def greys(name: str, share: float) -> list[int]:
        left, top, right, bottom = boxes[name]
        at = left + (right - left) * share
        part = picture.crop((round(at), round(top) + 2, round(at) + 12, round(bottom) - 2))
        return [grey for count, grey in part.getcolors(256) or [] for _ in range(count)]

    clean, dirty, active, sealed = (
        greys(*place) for place in (("prices-2", 0.1), ("prices-1", 0.2), ("prices-1", 0.8), ("orders-1", 0.2))
    )
    spread = [max(found) - min(found) for found in (clean, dirty, active, sealed)]
    assert spread[0] < 5 and spread[3] < 5
    assert spread[1] > 40 and spread[2] > 40
    assert clean[0] < sealed[0] - 20


@pytest.mark.parametrize("width", [1280, 1100, 375])
def test_nothing_is_wider_than_the_window(browser, small, thousand, width):
    for file in (small, thousand):
        with browser.open(file, width) as tab:
            assert tab.ask("document.documentElement.scrollWidth - innerWidth") == 0
    with browser.open(small, width) as tab:
        assert tab.ask(OVERFLOW) == []
        assert tab.ask(f"({OPEN}, {OVERFLOW})") == []


PLACES = """[...document.querySelectorAll(".topics tbody tr")].map((row) =>
  [...row.cells].map((one) => [one.dataset.label, one.getBoundingClientRect().left,
    one.getBoundingClientRect().top - row.getBoundingClientRect().top]))"""


def test_on_a_phone_a_fact_of_a_topic_has_the_same_place_in_each_row(browser, thousand):
    with browser.open(thousand, 390) as tab:
        first, *others = tab.ask(PLACES)
    assert len(others) == 19 and all(row == first for row in others)
    assert len({(left, top) for _, left, top in first}) == len(first)


def test_kafkas_directory_fits_too(browser, segments, tmp_path):
    segments("describe", GOLDEN / "broker-data", "--html", tmp_path / "kafka.html")
    for width in (1280, 375):
        with browser.open(tmp_path / "kafka.html", width) as tab:
            assert tab.ask(f"({OPEN}, {OVERFLOW})") == []


def test_without_scripts_all_is_there_but_the_controls(browser, small):
    """The picture is the one with scripts, less the form, which would do nothing."""
    with browser.open(small, script=False) as tab:
        without = tab.picture()
    with browser.open(small) as tab:
        assert tab.picture().tobytes() != without.tobytes()
        tab.ask('document.querySelector(".controls").hidden = true')
        assert tab.picture().tobytes() == without.tobytes()


def test_a_thousand_partitions_can_be_found_filtered_and_sorted(browser, thousand):
    script = """(() => {
      const form = document.querySelector(".controls");
      const set = (name, value) => {
        const field = form[name];
        if (field.type === "checkbox") field.checked = value; else field.value = value;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      };
      const rows = () => [...document.querySelectorAll("details.row")];
      const shown = () => rows().filter((one) => one.checkVisibility()).map((one) => one.id);
      const answers = { all: shown(), hidden: form.hidden };
      set("find", "TOPIC.03-7"); answers.found = shown(); answers.told = form.shown.value; set("find", "");
      set("policy", "compact"); answers.compacted = shown(); set("policy", "");
      set("due", true); answers.due = shown(); set("due", false);
      for (const by of ["size", "ratio", "next", "name"]) { set("sort", by); answers[by] = shown(); }
      return answers;
    })()"""
    with browser.open(thousand) as tab:
        answers = tab.ask(script)
    described = {
        f"{made.topic}-{one['partition']}": one
        for made, config in thousand_partitions()
        for one in describe(made, config)["partitions"]
    }
    assert answers["all"] == answers["name"] == list(described)
    assert answers["hidden"] is False
    assert (answers["found"], answers["told"]) == (["topic.03-7"], "1 of 1,000 partitions")
    compacted = [name for name, one in described.items() if one["dirty_ratio"] is not None]
    assert answers["compacted"] == compacted
    assert 0 < len(answers["due"]) < 1000
    for by, key in (("size", "size_bytes"), ("ratio", "dirty_ratio")):
        groups = [
            [described[name][key] for name in names]
            for _, names in itertools.groupby(answers[by], lambda name: name.rpartition("-")[0])
        ]
        known = [[-1.0 if value is None else value for value in group] for group in groups]
        assert len(known) == 20
        assert all(group == sorted(group, reverse=True) for group in known)
        assert [group[0] for group in known] == sorted((group[0] for group in known), reverse=True)
    due = set(answers["due"])
    for _, names in itertools.groupby(answers["next"], lambda name: name.rpartition("-")[0]):
        later = [name not in due for name in names]
        assert later == sorted(later)


def test_the_policy_of_the_page_runs_its_own_script_and_no_other(browser, thousand, tmp_path):
    for extra in ("", "<script>document.title = 'no'</script>"):
        file = tmp_path / "page.html"
        file.write_text(thousand.read_text().replace("<header>", f"{extra}<header>"))
        with browser.open(file) as tab:
            assert tab.ask("document.title") == "Log directory /data/log"
            assert tab.ask("document.querySelectorAll('details.row').length") == 1000
            assert tab.ask("document.querySelector('output').value") == "1,000 of 1,000 partitions"


def test_pointing_at_a_block_tells_of_its_segment(browser, small):
    script = """(() => {
      const block = document.querySelectorAll("#prices-0 .strip i")[2];
      block.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 100, clientY: 100 }));
      const tip = document.querySelector("#tip");
      const told = [...tip.querySelectorAll("dt")].map((one) => [one.textContent, one.nextSibling.textContent]);
      return [tip.checkVisibility(), Object.fromEntries(told)];
    })()"""
    with browser.open(small) as tab:
        visible, told = tab.ask(script)
    made, _ = topics()[0]
    segment = made.live_of(0)[2]
    assert visible
    assert told["Kind"] == "dirty head"
    assert told["Offsets"] == f"{segment.base_offset:,} – {segment.next_offset - 1:,}"
    assert told["Records"] == f"{segment.records:,}"
    assert told["File"] == segment.path.rpartition("/")[2]
