"""The shell of `speedwell enter`."""

import os
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from speedwell.cluster import supervisor
from speedwell.cluster.commands.enter import enter, shell
from speedwell.cluster.errors import ClusterError

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_the_prompt_of_bash_names_the_host() -> None:
    assert BASH is not None
    command = shell(BASH)
    rcfile = int(command[-1].rpartition("/")[2])
    try:
        done = subprocess.run([*command, "-i"], input="echo \"<$PS1>\"\n", capture_output=True, text=True, timeout=30,
                              check=True, env={**os.environ, "SPEEDWELL_HOST": "p0r0h0"}, pass_fds=[rcfile],
                              start_new_session=True)
    finally:
        os.close(rcfile)
    assert "<(p0r0h0) " in done.stdout


def test_another_shell_is_started_as_it_is() -> None:
    assert shell("/bin/zsh") == ("/bin/zsh",)


FABRIC = {"hosts": {"alice": {"pid": 1}}, "switches": {"left": {"pid": 1}}, "hosts_file": "/x/hosts",
          "directory": "/x"}


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "running", lambda: FABRIC)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused = CliRunner().invoke(enter, ["alice"])
    assert isinstance(refused.exception, ClusterError) and "needs root" in str(refused.exception)


def test_the_programs_of_open_vswitch_find_the_switch_that_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "running", lambda: FABRIC)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = {}
    monkeypatch.setattr(os, "execvpe", lambda program, command, variables: found.update(variables))
    CliRunner().invoke(enter, ["left", "ovs-vsctl", "show"])
    assert found["OVS_RUNDIR"] == "/x/switches/left"
