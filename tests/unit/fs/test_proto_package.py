"""Python that is started in a clone imports the clone, also where pip has installed the package."""

import shutil
import subprocess
import sys
from pathlib import Path

from speedwell.fs import proto


def test_a_clone_without_generated_modules_says_to_start_elsewhere(tmp_path: Path) -> None:
    package = tmp_path / "speedwell/fs/proto"
    package.mkdir(parents=True)
    shutil.copy(Path(proto.__file__), package)
    for each in (package.parent, package.parent.parent):
        (each / "__init__.py").touch()
    done = subprocess.run([sys.executable, "-c", "import speedwell.fs.proto.speedwell_pb2"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Python in another directory" in done.stderr and "No module named" not in done.stderr
