"""Wall clocks of single processes that tests may set while they run."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.preloaded import library, requires_compiler

__all__ = ["WallClock", "requires_compiler"]


class WallClock:
    """Of the programs that are started with `prefix` in front of their command."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.off_seconds = 0.0
        file.write_bytes(struct.pack("=q", 0))

    @property
    def prefix(self) -> Sequence[str]:
        return ["env", f"LD_PRELOAD={library('wall_clock')}", f"WALL_CLOCK_FILE={self._file}"]

    def jump(self, seconds: float) -> None:
        """Set it forward, or back."""
        self.off_seconds += seconds
        descriptor = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, struct.pack("=q", int(self.off_seconds * 1e9)), 0)   # the same file: it is mapped
        finally:
            os.close(descriptor)
