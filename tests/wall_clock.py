"""Wall clocks of single processes that tests may set while they run."""

import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

requires_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


class WallClock:
    """Of the programs that are started with `prefix` in front of their command."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.off_seconds = 0.0
        file.write_bytes(struct.pack("=q", 0))

    @property
    def prefix(self) -> Sequence[str]:
        return ["env", f"LD_PRELOAD={_library()}", f"WALL_CLOCK_FILE={self._file}"]

    def jump(self, seconds: float) -> None:
        """Set it forward, or back."""
        self.off_seconds += seconds
        descriptor = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, struct.pack("=q", int(self.off_seconds * 1e9)), 0)   # the same file: it is mapped
        finally:
            os.close(descriptor)


@functools.cache
def _library() -> Path:
    """Compiled once; it stays until this process ends."""
    directory = tempfile.TemporaryDirectory(prefix="wall-clock-")
    _kept.append(directory)
    library = Path(directory.name) / "wall_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library,
                    Path(__file__).with_suffix(".c"), "-ldl"], check=True)
    return library


_kept: list[tempfile.TemporaryDirectory[str]] = []
