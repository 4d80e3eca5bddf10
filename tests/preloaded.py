"""Libraries of the tests that change what single processes get from the system (LD_PRELOAD)."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

requires_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@functools.cache
def library(name: str) -> Path:
    """`tests/NAME.c` compiled, once; it stays until this process ends."""
    directory = tempfile.TemporaryDirectory(prefix="preloaded-")
    _kept.append(directory)
    made = Path(directory.name) / f"{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", made,
                    Path(__file__).with_name(f"{name}.c"), "-ldl"], check=True)
    return made


_kept: list[tempfile.TemporaryDirectory[str]] = []
