"""The shell of `speedwell enter`."""

import os
import shutil
import subprocess

import pytest

from cluster.commands.enter import shell

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
