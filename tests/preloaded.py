"""What changes for single processes what they get from the system: libraries (LD_PRELOAD), and a tracer."""

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
    return _compiled(name, f"{name}.so", "-shared", "-fPIC")


@functools.cache
def program(name: str) -> Path:
    """`tests/NAME.c` compiled to an executable, once; it stays until this process ends."""
    return _compiled(name, name)


def _compiled(name: str, made_as: str, *flags: str) -> Path:
    directory = tempfile.TemporaryDirectory(prefix="preloaded-")
    _kept.append(directory)
    made = Path(directory.name) / made_as
    subprocess.run(["cc", *flags, "-O1", "-Wall", "-Werror", "-o", made, Path(__file__).with_name(f"{name}.c"),
                    "-ldl"], check=True)
    return made


_kept: list[tempfile.TemporaryDirectory[str]] = []
