"""python -m verification.release.wheels [FOLDER]: the wheels that `make wheels` has left in FOLDER (dist), as far as
one machine can tell. Each extension is of the machine, the C library and the limited API that the wheel's name says, by
readelf, auditwheel and abi3audit. The one for x86-64 is installed beside the oldest and the newest numpy and Arrow that
it takes; the one for aarch64 is run by QEMU, with Debian's Python of arm64. What they read of Kafka's log directories
in tests/golden, and of what they have written with each codec, is what this checkout reads.

It needs Debian as root, for qemu-user and the packages of arm64, which are unpacked and not installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
DEBIAN = [
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libexpat1", "zlib1g", "libssl3"),
    *("libffi8", "libbz2-1.0", "liblzma5", "libstdc++6", "libgcc-s1", "libuuid1"),
]
GLIBCS = (17, 24, 26, 27, 28, 31, 34, 35)
"""manylinux tags that libraries of others have; Debian 12 has glibc 2.36."""

READ_AND_WRITE = """
import hashlib, pathlib, platform, sys, tempfile
import pyarrow as pa
from spark_segments import LogDir
rows, topics = [], 0
for directory in sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir()):
    for batch in LogDir.open(str(directory.parent)).topic(directory.name.rpartition("-")[0]).scan().batches():
        rows.append(batch.drop_columns(["topic"]))
    topics += 1
table = pa.Table.from_batches(rows).combine_chunks()
print(topics, table.num_rows, hashlib.sha256(str(table.to_pylist()).encode()).hexdigest())
for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
    log = LogDir.create(tempfile.mkdtemp())
    log.create_topic("written", config={"compression.type": codec})
    log.topic("written").append(table.select(["key", "value", "headers", "timestamp"]).slice(0, 20000))
    read = log.topic("written").scan().to_table()
    print(codec, read.num_rows, hashlib.sha256(str(read.select(["key", "value"]).to_pylist()).encode()).hexdigest())
"""


def said(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """What a command prints, on either of its outputs. Raises AssertionError where it fails."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}"
    return done.stdout


def check(wheel: Path, folder: Path) -> int:
    """How many extensions the wheel has. Raises AssertionError where one is not what the wheel's name says."""
    tag = wheel.stem.rpartition("-")[2]
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(folder, names)
    for name in names:
        read = said("readelf", "--wide", "--file-header", "--dynamic", "--version-info", folder / name)
        [machine] = [value for key, value in MACHINES.items() if tag.endswith(key)]
        assert machine in read, f"{wheel.name}: {name}: expected {machine}"
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", read))
        assert needed <= ({"libc.so"} if "musllinux" in tag else {"libc.so.6", "libm.so.6"}), f"{name}: {needed}"
        assert "musllinux" not in tag or "GLIBC" not in read, f"{name} of a wheel for musl has versions of glibc"
        assert name.endswith(".abi3.so"), name
    if "manylinux" in tag:  # of musl, auditwheel asks the loader of the machine that it runs on
        shown = " ".join(said("auditwheel", "show", wheel).split())
        assert f'the following platform tag: "{tag}"' in shown, shown
    assert "0 ABI version mismatches and 0 ABI violations" in " ".join(said("abi3audit", "-v", wheel).split())
    return len(names)


def arm64(folder: Path) -> Path:
    """A directory with Debian's Python of arm64."""
    said("dpkg", "--add-architecture", "arm64")
    said("apt-get", "update", "-q")
    said("apt-get", "install", "-y", "-q", "qemu-user")
    said("apt-get", "download", "-q", *(f"{name}:arm64" for name in DEBIAN), cwd=folder)
    for package in folder.glob("*.deb"):
        said("dpkg", "-x", package, folder / "root")
    return folder / "root"


def run_aarch64(wheel: Path, script: Path, topics: Path, folder: Path) -> str:
    """What the script prints by the wheel."""
    root, site = arm64(folder), folder / "site"
    platforms = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in GLIBCS] + ["--platform=manylinux2014_aarch64"]
    tags = ["--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--only-binary=:all:"]
    said(sys.executable, "-m", "pip", "install", "-q", "--target", site, *tags, *platforms, wheel)
    return said("qemu-aarch64", "-L", root, root / "usr/bin/python3.11", script, topics, PYTHONPATH=str(site))


def oldest(wheel: Path) -> list[str]:
    """The oldest numpy and pyarrow that the wheel takes, as requirements."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    return [f"{name}=={re.findall(rf'Requires-Dist: {name}.*>=([0-9.]+)', text)[0]}.*" for name in ("numpy", "pyarrow")]


def run_beside(wheel: Path, others: list[str], script: Path, topics: Path, folder: Path) -> str:
    """What the script prints by the wheel in an environment with other requirements."""
    said(sys.executable, "-m", "venv", "--clear", folder)
    python = folder / "bin" / "python"
    said(python, "-m", "pip", "install", "-q", wheel, *others)
    return said(python, script, topics, PYTHONPATH="")


def main(folder: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    assert wheels, f"No wheels in {folder}: run make wheels first"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for wheel in wheels:
            print(f"{wheel.name}: {check(wheel, work / wheel.stem)} extensions", flush=True)
        script, topics = work / "read_and_write.py", work / "topics"
        script.write_text(READ_AND_WRITE)
        topics.mkdir()
        for directory in (ROOT / "tests" / "golden").glob("canary*-0"):
            (topics / directory.name).symlink_to(directory)
        expected = said(sys.executable, script, topics, PYTHONPATH=str(ROOT))
        print(expected, end="")
        x86, aarch64 = (
            one for machine in MACHINES for one in wheels if "manylinux" in one.name and machine in one.name
        )
        for others in (oldest(x86), ["numpy", "pyarrow"]):
            assert run_beside(x86, others, script, topics, work / "environment") == expected, others
            print(f"the same beside {' '.join(others)}", flush=True)
        assert run_aarch64(aarch64, script, topics, work) == expected, "aarch64"
        print("the same on aarch64")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist")
