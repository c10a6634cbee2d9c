"""What rooms look like. Who may import whom is in pyproject.toml, and `make lint` holds it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.xdist_group("rooms")  # one process parses the package
PACKAGE = ROOT / "spark_segments"


@cache
def modules() -> dict[str, ast.Module]:
    """Each module by its name below the package. They are parsed once a test asks, not wherever tests are collected."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        trees[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return trees


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The packages that are imported, of any project."""
    packages = set()
    for node in nodes:
        packages |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        packages |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    return {package.partition(".")[0] for package in packages}


def test_only_spark_and_the_command_line_import_pyspark_when_they_run():
    for name, tree in modules().items():  # what stands under TYPE_CHECKING or in a function is no import
        assert name.partition(".")[0] in ("spark", "cli") or "pyspark" not in _imported(tree.body), name


def test_only_the_airflow_room_imports_airflow():
    for name, tree in modules().items():
        assert name.partition(".")[0] == "airflow" or "airflow" not in _imported(ast.walk(tree)), name


def test_every_room_says_what_lives_in_it():
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(PACKAGE)


def test_the_verifier_imports_no_test():
    for path in sorted((ROOT / "verification").rglob("*.py")):
        assert "tests" not in _imported(ast.walk(ast.parse(path.read_text()))), path.relative_to(ROOT)


def test_no_two_public_classes_have_one_name():
    homes: dict[str, str] = {}
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert homes.setdefault(node.name, name) == name, f"{node.name} is in {homes[node.name]} and in {name}"


# A position is a reader's: the next offset of a partition. These know them; where a kernel is, is a place in memory.
KNOW_POSITIONS = (
    "log.groups",
    "log.positions",
    "maintenance.rebuild.rebuild",
    "replicas.groups",
    "lake",
    "spark.streams",
)
KNOW_POSITIONS += ("kafka", "cli.records.follow", "cli.records.groups")


def test_a_place_in_a_file_is_a_byte_position():
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg"}
    for name, tree in modules().items():
        if not name.startswith(KNOW_POSITIONS) and "kernels" not in name:
            nodes = [node for node in ast.walk(tree) if type(node) in kinds]
            lines = [node.lineno for node in nodes if getattr(node, kinds[type(node)]) == "position"]
            assert not lines, f"{name}, lines {lines}: a reader's position, or a byte_position?"


def _uses(name: str, tree: ast.Module) -> set[str]:
    """The modules of the package that a module imports, in functions too, but for what only types need."""
    types = {node for block in ast.walk(tree) if _is_for_types(block) for node in ast.walk(block)}
    modules_used = set()
    for node in ast.walk(tree):
        if node in types or not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        home = node.module.removeprefix("spark_segments").removeprefix(".")
        for alias in node.names:
            inner = f"{home}.{alias.name}" if home else alias.name
            modules_used.add(inner if inner in modules() else home)
    return modules_used & modules().keys() - {name}


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_no_files_import_each_other_in_a_circle():
    uses = {name: _uses(name, tree) for name, tree in modules().items()}
    while leaves := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in leaves:
            del uses[name]
    assert not uses, f"a circle goes through {sorted(uses)}"


def test_test_functions_have_no_annotations():
    """One form for all: pytest gives them their arguments, and no type checker reads them."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                annotated = [part for part in ast.walk(node.args) if isinstance(part, ast.arg) and part.annotation]
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert not annotated and node.returns is None, f"{where}: take the annotations of {node.name} out"


def test_the_drawing_of_the_layers_is_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [layer.replace("spark_segments.", "").replace(" : ", " · ") for layer in contracts[0]["layers"]]
    drawing = (ROOT / "docs" / "pictures" / "layers.svg").read_text()
    assert re.findall(r'font-weight="600">([^<]*)<', drawing) == layers


def _docstrings(module: Path) -> Iterator[str]:
    """Texts that are statements of a module: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_every_module_that_a_docstring_names_exists():
    """By its name, or by the end of its path."""
    tops = ("benchmarks", "docs", "examples", "jobs", "spark_segments", "tests", "verification")
    paths = [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    places = [f"/{path.relative_to(ROOT).as_posix()}" for path in paths]
    for path in paths:
        for text in _docstrings(path):
            for name in re.findall(r"[\w./-]*\w\.py\b", text):
                assert any(place.endswith(f"/{name}") for place in places), (path, name)
