"""Which tests may be skipped where nothing else may: in continuous integration (`--allowed-skips`)."""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Allowed(NamedTuple):
    """A skip of tests in `where` (a file, or a folder that ends in `/`) whose reason holds `says`."""

    where: str
    says: str
    because: str


NO_CARGO = "scripts/install-suites takes cargo-web from Debian; it is missing only where that cannot be had"
ALLOWED = (
    Allowed("tests/integration/fuse_mount/test_mount_by_user.py", "cannot be read by an ordinary user",
            "a clone below /root is root's alone; a clone elsewhere runs it"),
    Allowed("tests/integration/cluster/test_local_mount.py", "cannot be read by an ordinary user",
            "a clone below /root is root's alone; a clone elsewhere runs it"),
    Allowed("tests/integration/topo/test_fabric_commands.py", "mnexec needs / to be a mount",
            "Mininet's own hosts do not start in a chroot; on a machine of its own they do"),
    Allowed("tests/integration/cluster/test_units_under_systemd.py", "units have a /tmp of their own",
            "a clone below /tmp is hidden from systemd's units; a clone elsewhere runs it"),
    Allowed("tests/integration/test_external_links.py", "this machine has no internet",
            "a mirror of packages is all that some machines reach; one with internet checks the links"),
    Allowed("tests/integration/fs/test_go_example.py", "no Go that the example takes is installed",
            "Debian 12's Go is too old for gRPC's modules"),
    Allowed("tests/integration/fs/test_go_example.py", "no proxy of Go modules",
            "a mirror of packages is all that some machines reach"),
    Allowed("tests/integration/fuse_mount/test_mount_pjdfstest.py", "pjdfstest needs cargo", NO_CARGO),
    Allowed("tests/integration/fuse_mount/test_mount_pjdfstest.py", "pjdfstest in C is not installed",
            "no registry has its sources; the suite in Rust asks the same"),
    Allowed("tests/integration/fuse_mount/test_mount_suites.py", "fsx needs cargo", NO_CARGO),
    Allowed("tests/integration/fuse_mount/test_mount_nameserver_killed.py", "no extended attributes to compare with",
            "tmpfs has none of users'"),
    Allowed("tests/unit/fs/test_store.py", "root writes everywhere", "the whole suite runs as root"),
    Allowed("tests/unit/fs/test_insecure.py", "this machine", "parts of the suite have a network of their own"),
)
"""Nothing is here that the set-up could install: a reference, a suite or a program that is missing fails."""

OPTION = "--allowed-skips"


def refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Have a skip fail that is not in the list. What is expected to fail is no skip."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(_is_at(report.nodeid, each.where) and each.says in reason for each in ALLOWED):
            report.outcome = "failed"
            report.longrepr = f"{reason}; this may not be skipped here (tests/skips.py has what may)"


def _is_at(test: str, where: str) -> bool:
    return test.startswith(where) if where.endswith("/") else test.partition("::")[0] == where
