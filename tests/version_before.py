"""The version before this one, in a directory of its own, for tests in which two versions talk to each other."""

import subprocess
import sys
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FIRST = "7f097da3e7f92cb6c76ec329637c66b807e7ed71"
"""In place of a release, as long as no commit before this one is tagged as one."""

_PROGRAM = """#!/bin/sh
exec env PYTHONPATH={tree} {python} -P -c 'import sys
from {module} import {function}
sys.argv[0] = "{name}"
sys.exit({function}())' "$@"
"""


class VersionBefore:
    """Unpacked in `tree`, its filesystem as `package`. `scripts` has its programs."""

    def __init__(self, tree: Path, least: str = FIRST) -> None:
        """The newest release, else `least`. Raises AssertionError where it is missing, as in a shallow clone."""
        self.tree = tree
        self.scripts = tree / "scripts-of-version"
        self.name = _newest_release() or least
        with tarfile.open(fileobj=BytesIO(_git("archive", "--format=tar", self.name))) as archive:
            archive.extractall(tree)
        self.package = "speedwell.fs" if (tree / "speedwell").exists() else "fs"
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--grpc_python_out=.",
                        *(str(path.relative_to(tree))
                          for path in tree.joinpath(*self.package.split("."), "proto").glob("*.proto"))],
                       cwd=tree, check=True)
        found = subprocess.run([sys.executable, "-c", f"import {self.package} as it; print(it.__file__)"], cwd=tree,
                               env={"PYTHONPATH": str(tree)}, capture_output=True, text=True, check=True).stdout
        assert found.startswith(str(tree)), f"{found} would be tested in place of the version before"
        self.scripts.mkdir()
        for name, entry in tomllib.loads((tree / "pyproject.toml").read_text())["project"]["scripts"].items():
            module, function = entry.split(":")
            script = self.scripts / name
            script.write_text(_PROGRAM.format(tree=tree, python=sys.executable, name=name, module=module,
                                              function=function))
            script.chmod(0o755)


def _newest_release() -> str:
    described = subprocess.run(["git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"], cwd=REPOSITORY,
                               capture_output=True, text=True, check=False)
    return described.stdout.strip()


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=False)
    assert not done.returncode, (f"the version before cannot be unpacked: {done.stderr.decode().strip()}; "
                                 "the tests need the whole history (git fetch --unshallow --tags)")
    return done.stdout
