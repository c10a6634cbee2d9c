"""The site is made with no warning, its examples run as they stand, and what it says of the code is so.

In the tutorial and the how-to pages every `bash` and `python` block runs, in the order of the page, in one empty
directory; a block `text title="prints"` is what the block before it prints. Blocks of other names are not run.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
import typer

import spark_segments
from spark_segments import LogDir, duckdb, errors, kafka_protocol, maintenance, polars
from spark_segments.cli import app, main
from spark_segments.config.table import KEYS, SERVER_KEYS
from spark_segments.face.topic import Topic
from spark_segments.log import LogDirectory
from spark_segments.log.manifest.files.row_files import SCHEMAS
from spark_segments.log.reading.scan import Scan
from spark_segments.spark.options import READER_OPTIONS, WRITER_OPTIONS
from tests.browser import Browser
from tests.conftest import ROOT
from verification.world.kafka_bytes.golden_files import GOLDEN

DOCS = ROOT / "docs"
PAGES = [
    "tutorial.md",
    "how-it-works.md",
    "capacity.md",
    *sorted(f"how-to/{page.name}" for page in (DOCS / "how-to").glob("*.md")),
]
_BLOCK = re.compile(r"^```(?P<kind>\w+)(?P<title> title=\"prints\")?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    kind: str
    code: str
    prints: str | None


def _examples(page: str) -> list[Example]:
    found: list[Example] = []
    for block in _BLOCK.finditer((DOCS / page).read_text()):
        if block["title"]:
            last = found.pop()
            found.append(Example(last.kind, last.code, block["code"]))
        elif block["kind"] in ("bash", "python"):
            found.append(Example(block["kind"], block["code"], None))
    return found


SPARK_PAGES = [
    page
    for page in PAGES
    if any("spark_session(" in example.code for example in _examples(page) if example.kind == "python")
]


STORE_PAGE = "how-to/object-store.md"

GATE_PAGES = ("capacity.md", "how-to/archive-kafka.md", "how-to/polars.md", "tutorial.md")
"""Pages of commands, of Python and of Spark whose examples run in the gate; those of the other pages are proofs."""


FRAGMENT = "# A fragment: it is not run here.\n"
CHECKOUT_PAGES = ("format/conformance.md", "design/proof.md")
"""Pages whose commands are of a checkout, and not of an empty directory."""
SIGNATURE_PAGES = ("reference/python.md", "design/decisions.md")


@pytest.mark.parametrize("page", [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))])
def test_a_fence_is_run_or_visibly_no_command(page):
    """A reader types what looks like a command: it is run by a test, has a prompt, or says that it is a fragment."""
    text = (DOCS / page).read_text()
    for fence in re.finditer(r"^ *```(\w+)[^\n]*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        kind = fence[1]
        code = fence[2]
        if kind in ("bash", "python"):
            assert page in (*PAGES, *CHECKOUT_PAGES, *SIGNATURE_PAGES), f"no test runs this block:\n{code}"
        elif kind == "py":
            assert code.startswith(FRAGMENT), code
        elif kind == "console":
            assert re.search(r"^ *\$ ", code, re.MULTILINE), code
        else:
            assert kind in ("text", "json", "properties", "yaml", "sql"), code


def _marked(pages: Iterable[str]) -> list[Any]:
    return [page if page in GATE_PAGES else pytest.param(page, marks=pytest.mark.proof) for page in pages]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory with a Kafka directory and Debezium's changes in it: where the examples of a page run."""
    shutil.copytree(GOLDEN / "broker-data", tmp_path / "here" / "kafka-data")
    shutil.copytree(ROOT / "examples" / "debezium", tmp_path / "here" / "debezium")
    with contextlib.chdir(tmp_path / "here"):
        yield tmp_path / "here"


def _run_page(page: str, directory: Path, environment: Mapping[str, str]) -> None:
    path = directory.parent / "bin"
    path.mkdir()
    python, pipelines = shlex.quote(sys.executable), Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    segments = f'{python} -c "from spark_segments.cli import main; main()"'
    for name, program in (("segments", segments), ("python", python), (pipelines.name, shlex.quote(str(pipelines)))):
        command = path / name
        command.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        command.chmod(0o755)
    environment = dict(environment) | {"PATH": f"{path}{os.pathsep}{environment['PATH']}"}
    names: dict[str, object] = {}
    for example in _examples(page):
        if example.kind == "python":
            printed = _printed(lambda code=example.code: exec(compile(code, page, "exec"), names))
        elif commands := _plain_commands(example.code):
            printed = "".join(_printed(lambda arguments=arguments: _run_command(arguments)) for arguments in commands)
        else:
            shell = ["bash", "-e", "-o", "pipefail", "-c", example.code]
            run = subprocess.run(shell, env=environment, capture_output=True, text=True)
            assert run.returncode == 0, f"{example.code}\n{run.stdout}{run.stderr}"
            printed = run.stdout
        if example.prints is not None:
            assert _lines(printed) == _lines(example.prints), example.code


def _plain_commands(code: str) -> list[list[str]]:
    """The arguments of each `segments` command of a block that needs no shell: these run here, which is faster."""
    lines = code.replace("\\\n", " ").splitlines()
    if all(line.startswith("segments ") and not set(line) & set("|<>&;$*`") for line in lines):
        return [shlex.split(line)[1:] for line in lines]
    return []


def _run_command(arguments: list[str]) -> None:
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, (arguments, end.code)


def _printed(work: Callable[[], object]) -> str:
    output = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(output):
        work()
    return output.buffer.getvalue().decode()


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@pytest.mark.parametrize(
    "page", _marked(page for page in PAGES if page not in (*SPARK_PAGES, STORE_PAGE) and _examples(page))
)
def test_the_examples_of_a_page_run(page, directory, python_environment):
    _run_page(page, directory, python_environment)


@pytest.mark.parametrize("page", _marked(SPARK_PAGES))
def test_the_examples_of_a_page_with_spark_run(page, spark, directory, python_environment):
    _run_page(page, directory, python_environment)


@pytest.mark.proof
def test_the_examples_with_an_object_store_run(s3_options, monkeypatch, directory, python_environment):
    given = {name: value for name, value in s3_options.items() if name != "AWS_REGION"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    _run_page(STORE_PAGE, directory, python_environment | given)


def test_every_option_of_reader_and_writer_is_on_its_page():
    page = (DOCS / "reference" / "options.md").read_text()
    sections = dict(section.split("\n", 1) for section in page.split("\n## ")[1:])

    for title, options in (("Reader", READER_OPTIONS), ("Writer", WRITER_OPTIONS)):
        named = {name for line in sections[title].splitlines() if line.startswith("| `") for name in _names(line)}
        assert named == {*options, "storage.*"}


def _names(line: str) -> list[str]:
    return re.findall(r"`([^`]+)`", line.split(" | ")[0])


def test_every_room_is_on_the_architecture_page():
    page = (DOCS / "design" / "architecture.md").read_text()
    package = ROOT / "spark_segments"
    layers = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rooms = {path.parent.name for layer in layers for path in (package / layer).glob("*/__init__.py")}

    named = set(re.findall(r"`(?:\w+/)*(\w+)`", page))
    assert layers - {"__init__", "__main__"} <= named
    assert rooms <= named


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_every_column_of_the_manifest_is_specified(kind):
    page = (DOCS / "format" / "manifest.md").read_text()
    section = re.search(rf"^## `kind={kind}`.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    columns = section[0].partition("| Column |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[:2] for line in columns.splitlines() if line.startswith("| `")]

    types = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "binary": pa.binary()}
    specified = {name.strip("| `"): types.get(text) for name, text in rows}
    assert list(specified) == SCHEMAS[kind].names
    nested = {field.name for field in SCHEMAS[kind] if pa.types.is_nested(field.type)}
    assert all(specified[field.name] == field.type for field in SCHEMAS[kind] if field.name not in nested)


# With all that needs a browser, which is installed once, and so is the site made once.
SITE = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `mkdocs build --strict` makes it: a warning is an error."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return target


@SITE
def test_the_reference_names_every_setting_command_and_error(site):
    pages = {name: (site / "reference" / f"{name}.html").read_text() for name in ("settings", "commands", "errors")}

    assert all(f"<code>{name}</code>" in pages["settings"] for name in [*KEYS, *SERVER_KEYS])
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert all(f"<code>{name}</code>" in pages["errors"] for name in classes)
    for command in ("topic create", "append", "consume", "roll", "retain", "compact", "vacuum", "verify", "import"):
        assert f"segments {command}" in pages["commands"]


@SITE
def test_the_site_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assets = re.findall(r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="([^"]+)"', page.read_text())
        assert not [asset for asset in assets if asset.startswith(("http:", "https:", "//"))], page


FIRST_RESULT = """new Promise((done) => {
  const input = document.querySelector("input.md-search__input"), start = Date.now()
  const look = () => {
    const found = document.querySelector("a.md-search-result__link")
    found ? done(found.pathname) : Date.now() - start > 30000 ? done("nothing") : setTimeout(look, 20)
  }
  document.querySelector("#__search").click()
  input.focus()
  input.value = %s
  input.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }))
  look()
})"""


@pytest.mark.proof
@SITE
def test_the_search_of_a_folder_finds_the_page_first(site, tmp_path):
    wanted = {"delete topic": "restore", "reset offsets": "groups", "kafka-consumer-groups": "groups"}
    browser = Browser(tmp_path)
    try:
        for query, page in wanted.items():
            with browser.open(site / "index.html") as tab:
                script = FIRST_RESULT % json.dumps(query)
                answer = tab.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
            assert Path(answer["result"]["value"]).stem == page, query
    finally:
        browser.close()


@SITE
def test_no_line_of_code_is_cut_on_a_phone(site, tmp_path):
    cut = "[...document.querySelectorAll('pre > code')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    browser = Browser(tmp_path)
    try:
        with browser.open(site / "tutorial.html", 390) as tab:
            assert tab.ask("document.querySelectorAll('pre > code').length") > 5 and tab.ask(cut) == 0
            assert tab.ask("document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        browser.close()


def test_the_python_face_fits_on_a_page_and_has_every_public_name():
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    lines = generate["face"]().splitlines()[2:]
    assert len(lines) <= 62
    assert all(re.fullmatch(r"\| `[\w.]+` \| \S.+ \|", line) for line in lines)
    listed = {tuple(line.split("`")[1].split(".")) for line in lines}
    # What jobs and engines ask for: no user needs it.
    inside = {"storage", "defaults", "uri", "is_kafka", "manifest", "decoders", "values"}
    inside |= {"of", "schema", "select", "parts", "read", "columns", "of_times", "of_keys", "of_field", "key_bytes"}
    of_the_core = {"snapshot", "directories", "is_there", "named", "known", "check_writable"}
    of_the_core |= {
        "note_follower",
        "known_followers",
        "selected",
        "is_marked",
        "check_apart",
        "hinting",
        "key_offsets",
    }
    of_engines = {"where", "columns_of", "keys_of"}
    for cls, inherited, inner in ((LogDir, LogDirectory, of_the_core), (Topic, Topic, set()), (Scan, Scan, of_engines)):
        fields = set(getattr(cls, "__dataclass_fields__", ()))
        names = {name for name in vars(cls) | vars(inherited) if not name.startswith("_")} - fields - inside - inner
        assert {one[1] for one in listed if one[0] == cls.__name__} == names, cls
    owners = generate["FACE"]
    for module in (spark_segments, maintenance, kafka_protocol, polars, duckdb):
        classes = {owner.rpartition(".")[2] for owner in owners if owner.rpartition(".")[0] == module.__name__}
        apart = {"__version__", "errors", *classes - set(module.__all__)}  # errors have a page; modules are owners, too
        names = {*owners.get(module.__name__, ()), *classes} - apart
        assert names == set(module.__all__) - apart, module


def test_the_page_of_python_shows_the_face():
    owners = runpy.run_path(str(ROOT / "docs" / "generate.py"))["FACE"]
    modules = {owner: names for owner, names in owners.items() if owner.rpartition(".")[2].islower()}
    face = {*owners.keys() - modules.keys(), *(f"{module}.{name}" for module in modules for name in modules[module])}
    parts = re.findall(
        r"^<!-- generated: python (.+) -->$", (DOCS / "reference" / "python.md").read_text(), re.MULTILINE
    )
    assert sorted(" ".join(parts).split()) == sorted(
        face | {"spark_segments.duckdb.topic_database.Result"}
    )  # what TopicDatabase.sql gives


def test_what_is_generated_says_what_the_code_says():
    written = runpy.run_path(str(DOCS / "generate.py"))["written"]()
    stale = [path.name for path, text in written.items() if path.read_text() != text]
    assert not stale, "python docs/generate.py writes them anew"


def test_the_changelog_and_the_recipe_have_the_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    recipe = re.search(r'^  version: "(.+)"$', (ROOT / "conda" / "recipe.yaml").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", spark_segments.__version__]
    assert recipe is not None and recipe[1] == spark_segments.__version__


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each `segments` command in the blocks of a page that are no code."""
    for language, block in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        if language not in ("", "console", "bash", "sh"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^.*spark-submit.*\(segments doctor --path job\)\"", "segments", line.strip())
            for command in re.split(r"&&|\|\||[|;]\s", line.removeprefix("$ ")):
                if (command := command.strip()).startswith("segments "):
                    words = list(
                        itertools.takewhile(
                            lambda word: word[:1] not in (">", "<"), shlex.split(command, comments=True)
                        )
                    )
                    yield words[1:]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_every_command_on_a_page_is_one_that_is_understood(page):
    """Those that no test runs, since they need a cluster or a terminal, too."""
    for words in _commands(page.read_text()):
        group = typer.main.get_command(app)
        with typer.Context(group, info_name="segments") as context:
            while hasattr(group, "list_commands") and words and not words[0].startswith("-"):
                _, group, words = group.resolve_command(context, words)
            try:
                if not hasattr(group, "list_commands"):
                    group.make_context(group.name, words, parent=context)
            except typer.BadParameter as error:
                assert error.message.endswith(" does not exist."), (words, error)


def test_readmes_commands_install_the_checkout_in_place():
    """Workers of Spark look where they are started first: a checkout without kernels would hide the package."""
    installs = re.findall(r"pip install .*?'\.\[", (ROOT / "README.md").read_text())
    assert installs and all(" -e " in one for one in installs)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts and the site name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[(.+?)\]\(.*?\)", r"\1", text).lower()).strip().replace(" ", "-")
        for text in headings
    }


ALL_PAGES = pytest.mark.parametrize(
    "page",
    [
        *sorted(ROOT.glob("*.md")),
        *sorted(DOCS.rglob("*.md")),
        *sorted(ROOT.glob("examples/*/README.md")),
        ROOT / "benchmarks" / "README.md",
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)


@ALL_PAGES
def test_every_link_of_a_file_leads_to_a_file(page):
    """As the files lie in the repository, with no site made of them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)):
        path, _, anchor = target.partition("#")
        if not path.startswith(("http:", "https:", "mailto:")):
            linked = (page.parent / path) if path else page
            assert linked.exists(), target
            assert not anchor or linked.suffix != ".md" or anchor in _anchors(linked), target


@ALL_PAGES
def test_every_file_of_the_code_that_a_page_names_exists(page):
    if page.name == "CHANGELOG.md":  # of files as they were
        return
    for path in re.findall(
        r"`((?:benchmarks|docs|examples|jobs|spark_segments|tests|verification)/[\w./-]+)`", page.read_text()
    ):
        assert (ROOT / path).exists(), path
