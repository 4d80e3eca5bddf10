"""The Debian package, as dpkg installs it: what it brings starts, with its own libraries alone."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.cluster.machines import CHECKOUT, machines

PACKAGE_VARIABLE = "SPEEDWELL_DEBIAN_PACKAGE"
"""A package that scripts/debian-package has made, where the test has no network to make one."""

SCRIPT = """export PATH=/srv/root/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir /srv/units; mount --bind /srv/root/opt /opt
speedwell init /srv/speedwell nameserver dataserver controller --name a --address 10.0.0.1 --replication 1
speedwell up
curl -sS --cacert /srv/speedwell/identity/authority.pem --cert /srv/speedwell/identity/operator/identity.pem \\
    https://10.0.0.1:8080/v1/health
speedwell put /bin/bash /
speedwell get /bash - | cmp - /bin/bash
grep speedwell-dataserver /srv/speedwell/state.json
speedwell down
speedwell init /srv/other --name a --address 10.0.0.1 --systemd /srv/units
grep -h ExecStart /srv/units/*.service
"""


@pytest.mark.root
@pytest.mark.timeout(600)
def test_a_package_that_dpkg_has_installed_starts_an_installation(tmp_path: Path) -> None:
    package = os.environ.get(PACKAGE_VARIABLE) or run(str(CHECKOUT / "scripts/debian-package"), str(tmp_path)).strip()
    with ExitStack() as ending:
        machine = machines("a", ending)["a"]
        root = Path(machine.disk) / "srv" / "root"
        for name in ("info", "updates", "triggers"):
            (root / "var/lib/dpkg" / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        run("dpkg", f"--root={root}", "--force-depends", "--install", package)
        assert "Status: install ok installed" in (root / "var/lib/dpkg/status").read_text()
        assert (root / "usr/share/man/man1/speedwell.1").exists()
        printed = machine.run(SCRIPT)
        assert '"/opt/speedwell/bin/speedwell-dataserver"' in printed
        assert '"status":"empty"' in printed, "the controller of a network without switches"
        assert "ExecStart=/opt/speedwell/bin/speedwell-nameserver --config /srv/other/nameserver.toml" in printed
        run("dpkg", f"--root={root}", "--force-script-chrootless", "--remove", "speedwell")
        assert not list(root.glob("usr/bin/speedwell*"))
        assert not list(root.glob("opt/speedwell*"))


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
