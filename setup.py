"""Generates the protocols' modules while the package is built; pyproject.toml says all else."""

from pathlib import Path

from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import ExecError


class BuildWithProtocols(build_py):
    """Into the wheel, or beside their .proto files for an editable installation."""

    def run(self) -> None:
        super().run()
        target = "." if self.editable_mode else self.build_lib
        outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", "-I.", *outputs, *map(str, sorted(Path("speedwell/fs/proto").glob("*.proto")))]):
            raise ExecError("protoc failed")


setup(cmdclass={"build_py": BuildWithProtocols})
