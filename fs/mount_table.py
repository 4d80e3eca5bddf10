"""What is mounted where on this machine."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILESYSTEM_TYPE = "fuse.speedwell"


@dataclass(frozen=True)
class Mount:
    """One line of the kernel's mount table."""

    mountpoint: Path
    filesystem_type: str
    source: str
    options: tuple[str, ...] = ()
    """of the mount point and of the filesystem"""
    device: str = ""
    """MAJOR:MINOR"""

    @property
    def owner(self) -> int:
        """The user who made a FUSE mount."""
        return next((int(option.removeprefix("user_id=")) for option in self.options
                     if option.startswith("user_id=")), 0)


def mounts(table: Path = Path("/proc/self/mountinfo")) -> Iterator[Mount]:
    """The mounts that this process sees (proc(5), mountinfo)."""
    for line in table.read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        device, _, mountpoint, options = before.split(b" ")[2:6]
        filesystem_type, source, *more = after.split(b" ")
        yield Mount(Path(os.fsdecode(_unescaped(mountpoint))), filesystem_type.decode(),
                    os.fsdecode(_unescaped(source)), tuple(os.fsdecode(b",".join([options, *more])).split(",")),
                    device.decode())


def _unescaped(field: bytes) -> bytes:
    """Space, tab, newline, backslash and # are written as three octal digits."""
    return re.sub(rb"\\([0-7]{3})", lambda digits: bytes([int(digits[1], 8)]), field)


def mounted_here(mountpoint: Path) -> Mount | None:
    """The topmost mount on `mountpoint`, which has to be absolute and free of links."""
    found = [mount for mount in mounts() if mount.mountpoint == mountpoint]
    return found[-1] if found else None
