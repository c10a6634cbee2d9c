"""A disk that forgets: what is left of a directory after a power loss, by the notes of disk.c."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("disk.c")


@dataclass(frozen=True)
class Disk:
    """`root`: the directory that loses power. `notes`: what was forced to disk. `library`: disk.c, compiled."""

    root: Path
    notes: Path
    library: Path

    @classmethod
    def make(cls, directory: Path) -> Disk:
        """Compiles disk.c. Needs a C compiler."""
        root, notes, library = directory / "disk", directory / "notes", directory / "disk.so"
        root.mkdir()
        notes.mkdir()
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", library, _SOURCE, "-ldl"], check=True)
        return cls(root, notes, library)

    def environment(self) -> dict[str, str]:
        """The environment of a process that the disk is to see."""
        watched = {"LD_PRELOAD": self.library, "DISK_ROOT": self.root.resolve(), "DISK_NOTES": self.notes}
        return os.environ | {name: str(value) for name, value in watched.items()}

    def after_power_loss(self, target: Path, luck: random.Random | None) -> None:
        """Makes `target` what `root` is after a power loss.

        What was forced to disk is there: a file with the bytes that it had then, a name where its directory was forced
        with it. Of all else, nothing is there without `luck`; with `luck` a name may be there, and its file may be
        whole, empty or cut.
        """
        self._directory(self.root, self.root.stat().st_ino, target, luck)

    def _directory(self, source: Path, inode: int, target: Path, luck: random.Random | None) -> None:
        target.mkdir()
        names = self._forced_names(inode)
        there = {entry.name: (entry.is_dir(), entry.inode()) for entry in os.scandir(source)} if source.is_dir() else {}
        for name, entry in there.items():
            if name not in names and luck is not None and luck.random() < 0.5:
                names[name] = entry
        for name, (is_directory, number) in names.items():
            if is_directory:
                self._directory(source / name, number, target / name, luck)
            else:
                now = there.get(name) == (False, number)
                (target / name).write_bytes(self._bytes(source / name if now else None, number, luck))

    def _forced_names(self, inode: int) -> dict[str, tuple[bool, int]]:
        note = self.notes / f"names-{inode}"
        if not note.exists():
            return {}
        lines = (line.split(" ", 2) for line in note.read_text().splitlines())
        return {name: (kind == "d", int(number)) for kind, number, name in lines}

    def _bytes(self, path: Path | None, inode: int, luck: random.Random | None) -> bytes:
        note = self.notes / f"data-{inode}"
        if note.exists():
            return note.read_bytes()
        if path is None or luck is None:
            return b""
        content = path.read_bytes()
        return luck.choice([content, b"", content[: luck.randint(0, len(content))]])
