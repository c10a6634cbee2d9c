"""The files of conf/ show every key and set nothing."""

from __future__ import annotations

import re
import tomllib

import pytest
import typer
import yaml

from spark_segments.cli import app
from spark_segments.config import (
    KEYS,
    SERVER_KEYS,
    ServerConfig,
    TopicConfig,
    load_defaults,
    server_config,
    topic_config,
)
from tests.conftest import ROOT

CONF = ROOT / "conf"

PROPERTIES = (CONF / "segments.properties").read_text(encoding="utf-8")
SHOWN = re.findall(r"^#([a-z0-9.]+)=(.*)$", PROPERTIES, re.MULTILINE)


def test_the_shipped_file_sets_nothing():
    assert load_defaults(CONF / "segments.properties") == {}


def test_the_shipped_file_shows_every_key_once():
    names = [synonym.name for setting in KEYS.values() for synonym in setting.server] + list(SERVER_KEYS)
    assert sorted(name for name, _ in SHOWN) == sorted(names)
    topic_only = [name for name, setting in KEYS.items() if not setting.server]
    assert all(name in PROPERTIES for name in topic_only)


@pytest.mark.parametrize(("name", "value"), SHOWN)
def test_each_shown_default_is_the_default(defaults_file, name, value):
    found = load_defaults(defaults_file(f"{name}={value}"))
    assert len(found) == 1
    assert topic_config({}, found) == TopicConfig()
    assert server_config({}, found) == ServerConfig()


def test_the_shipped_file_says_what_each_key_means():
    blocks = [" ".join(re.findall(r"^# (.*)$", block, re.MULTILINE)) for block in PROPERTIES.split("\n\n")]
    for setting in (*KEYS.values(), *SERVER_KEYS.values()):
        if setting.server or setting.name in SERVER_KEYS:
            assert any(block.startswith(f"{setting.doc}. ") for block in blocks), setting.name


def test_sparks_files_are_well_formed():
    lines = [line for line in (CONF / "spark-defaults.conf").read_text().splitlines() if line and line[0] != "#"]
    assert lines
    assert all(re.fullmatch(r"spark\.[\w.]+ +\S+", line) for line in lines)
    loggers = dict(re.findall(r"^logger\.(\w+)\.(name|level) ", (CONF / "log4j2.properties").read_text(), re.MULTILINE))
    assert set(loggers.values()) == {"level"}  # each named logger has its level, after its name


_DURATION = re.compile(r"([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?")
_RULE = {"alert", "expr", "for", "labels", "annotations"}


def test_the_rules_of_prometheus_have_its_grammar_and_name_metrics_that_are_written():
    """As `promtool check rules` reads them: no unknown field, durations, names of labels, one alert of a name."""
    document = yaml.safe_load((CONF / "prometheus-rules.yaml").read_text())
    monitoring = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    metrics = set(re.findall(r"`((?:kafka|segments)_\w+)`", monitoring))
    assert set(document) == {"groups"}
    (group,) = document["groups"]
    assert set(group) == {"name", "rules"} and group["rules"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) and all(f"| `{name}` |" in monitoring for name in names)
    for rule in group["rules"]:
        assert set(rule) == _RULE
        assert _DURATION.fullmatch(rule["for"]) and rule["for"]
        assert all(re.fullmatch(r"[a-zA-Z_]\w*", label) for label in (*rule["labels"], *rule["annotations"]))
        assert all(isinstance(text, str) for text in (*rule["labels"].values(), *rule["annotations"].values()))
        named = set(re.findall(r"(?:kafka|segments)_\w+", rule["expr"]))
        assert named and named <= metrics
        assert all(
            rule["expr"].count(opening) == rule["expr"].count(closing) for opening, closing in ("()", "{}", "[]")
        )


def test_the_compose_file_builds_an_image_of_the_wheel_and_runs_a_command_that_is_understood():
    """No index of packages has a release."""
    compose = ROOT / "examples" / "serve" / "compose.yaml"
    service = yaml.safe_load(compose.read_text())["services"]["kafka"]
    context = (compose.parent / service["build"]["context"]).resolve()
    recipe = (context / service["build"]["dockerfile"]).read_text()
    assert context == ROOT and "COPY dist/*.whl" in recipe and 'ENTRYPOINT ["segments"]' in recipe
    extras = re.findall(r'"\$\{wheel\}\[(.*)\]"', recipe)[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"]) and "kafka" in extras
    group = typer.main.get_command(app)
    with typer.Context(group, info_name="segments") as context:
        _, command, words = group.resolve_command(context, list(service["command"]))
        command.make_context(command.name, words, parent=context, resilient_parsing=False)
