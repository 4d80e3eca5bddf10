"""The Debian package, as dpkg installs it: what it brings starts, with its own libraries alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.booted_systemd import SYSTEMD, BootedSystemd
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


APT = "cd /; apt-get -q -y -o APT::Sandbox::User=root --no-install-recommends"
UNDER_SYSTEMD = """speedwell init /srv/speedwell --name a --address 127.0.0.1 --replication 1 --systemd
systemctl daemon-reload
systemctl start speedwell-certificates speedwell-nameserver speedwell-dataserver
for second in $(seq 60); do speedwell status | grep -q '^dataservers: 1 alive' && break; sleep 1; done
speedwell put /bin/bash /
speedwell get /bash - | cmp - /bin/bash
systemctl stop speedwell-certificates speedwell-nameserver speedwell-dataserver
"""
pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@pytest.fixture(name="package", scope="module")
def _package() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:      # a booted machine sees it
        made = os.environ.get(PACKAGE_VARIABLE) or run(str(CHECKOUT / "scripts/debian-package"), place).strip()
        yield Path(shutil.copy(made, place) if PACKAGE_VARIABLE in os.environ else made)


def test_apt_installs_it_with_what_it_depends_on_its_units_run_and_a_purge_leaves_nothing(package: Path) -> None:
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed")
    with ExitStack() as ending:
        machine = BootedSystemd(ending)
        planned = machine.run(f"{APT} install --simulate {package}")
        assert [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")] == ["speedwell"]
        machine.run(f"{APT} install {package}")
        files = machine.run("dpkg -L speedwell; dpkg -V speedwell").splitlines()
        copyright_file = machine.run("cat /usr/share/doc/speedwell/copyright")
        bundled = {path.split("/")[-1].partition("-")[0] for path in files
                   if re.fullmatch(".*/site-packages/[^/]*[.]dist-info", path)}
        assert {"grpcio", "cryptography", "ryu", "numba"} < bundled
        for name in bundled - {"speedwell"}:
            assert re.search(rf"^{name.replace('_', '[-_.]')} \S+, in /opt/speedwell: ", copyright_file,
                             re.MULTILINE | re.IGNORECASE), name
        assert "Redistribution and use in source and binary forms" in copyright_file
        machine.run(UNDER_SYSTEMD)
        machine.run(f"{APT} purge speedwell")
        own = [path for path in files if "speedwell" in path and not path.startswith("/opt/speedwell/")]
        assert len(own) > 10 and "/opt/speedwell" in own
        assert machine.run(f"ls -d {' '.join(own)} 2>/dev/null || true") == ""
        assert machine.attempt("dpkg -s speedwell").returncode != 0
        assert machine.run("ls /srv/speedwell/dataserver"), "what is stored stays"


def test_a_package_that_dpkg_has_installed_starts_an_installation(package: Path) -> None:
    with ExitStack() as ending:
        machine = machines("a", ending)["a"]
        root = Path(machine.disk) / "srv" / "root"
        for name in ("info", "updates", "triggers"):
            (root / "var/lib/dpkg" / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        run("dpkg", f"--root={root}", "--force-depends", "--install", str(package))
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
