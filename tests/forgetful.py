"""A directory on a disk that forgets what was not synced when the power fails (tests/forgetful.c)."""

import ctypes
import os
import random
import shutil
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.preloaded import library, program

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _NO_FOLLOW, _BASIC_AND_BIRTH = -100, 0x100, 0xFFF

Names = dict[str, tuple[str, bool]]
"""Key of the inode, and whether it is a directory, by name."""


class ForgetfulDisk:
    """What programs that are started with `prefix` in front of their command do in `tree`."""

    def __init__(self, tree: Path, records: Path) -> None:
        self.tree = tree
        self._records = records

    @property
    def prefix(self) -> Sequence[str]:
        self._make_records()
        return ["env", f"LD_PRELOAD={library('forgetful')}", f"FORGETFUL={self._records}"]

    @property
    def tracing_prefix(self) -> Sequence[str]:
        """In place of `prefix` for programs that do not call the C library, as those in Go."""
        self._make_records()
        return ["env", f"FORGETFUL={self._records}", str(program("forgetful_tracer"))]

    def _make_records(self) -> None:
        for kind in ("inodes", "names"):
            (self._records / kind).mkdir(parents=True, exist_ok=True)

    def remember_all(self) -> None:
        """From now on the disk has everything that is in the tree, as if it had been there for long."""
        for kind in ("inodes", "names"):
            shutil.rmtree(self._records / kind)
            (self._records / kind).mkdir()
        for directory, _, files in os.walk(self.tree):
            listing = _names_in(Path(directory))
            (self._records / "names" / _key(Path(directory))).write_text("".join(
                f"{key} {'d' if is_directory else 'f'} {name}\n" for name, (key, is_directory) in listing.items()))
            for name in files:
                with suppress(KeyError, FileNotFoundError):     # a database has replaced it meanwhile
                    shutil.copyfile(Path(directory, name), self._records / "inodes" / listing[name][0])

    def lose_power(self, generator: random.Random, reached: float) -> None:
        """Make the tree what the disk has. All programs that use it are dead. `reached` is the probability that
        what was not synced has reached the disk all the same, for each file's content and each directory's names."""
        present: dict[str, Path] = {}
        for directory, _, files in os.walk(self.tree):
            for path in (Path(directory), *(Path(directory, name) for name in files)):
                present[_key(path)] = path
        made = self.tree.with_name(self.tree.name + ".after")
        made.mkdir()
        self._build(_key(self.tree), made, present, {}, lambda: generator.random() < reached)
        shutil.rmtree(self.tree)
        made.rename(self.tree)
        self.remember_all()

    def _build(self, key: str, made: Path, present: dict[str, Path], linked: dict[str, Path],
               reaches: Callable[[], bool]) -> None:
        for name, (inode, is_directory) in self._names(key, present, reaches()).items():
            place = made / name
            if is_directory:
                place.mkdir()
                self._build(inode, place, present, linked, reaches)
            elif inode in linked:
                os.link(linked[inode], place)
            else:
                synced = self._records / "inodes" / inode
                if inode in present and reaches():
                    shutil.copyfile(present[inode], place)
                elif synced.exists():
                    shutil.copyfile(synced, place)
                else:
                    place.touch()
                linked[inode] = place

    def _names(self, key: str, present: dict[str, Path], all_reached: bool) -> Names:
        if all_reached and key in present:
            return _names_in(present[key])
        try:
            lines = (self._records / "names" / key).read_text().splitlines()
        except FileNotFoundError:
            return {}
        parts = (line.split(" ", 2) for line in lines)
        return {name: (inode, kind == "d") for inode, kind, name in parts}


def _names_in(directory: Path) -> Names:
    names: Names = {}
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            names[path.name] = _key(path), stat.S_ISDIR(path.lstat().st_mode)
    return names


def _key(path: Path) -> str:
    """The inode, told from others that had or get its number by its time of birth."""
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.statx(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _BASIC_AND_BIRTH, buffer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    inode, = struct.unpack_from("Q", buffer, 32)
    seconds, nanoseconds = struct.unpack_from("qI", buffer, 80)
    return f"{inode}.{seconds}.{nanoseconds}"
