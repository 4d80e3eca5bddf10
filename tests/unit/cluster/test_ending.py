"""How commands and daemons end: not with the interpreter's own end, which frees what running threads use."""

import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from speedwell.fs.ending import interrupted_after

LATE = """
import os, sys

class Late:
    def __del__(self, write=os.write):
        write(1, b"torn down")

sys.late = Late()       # lives until the interpreter takes its modules apart
"""

COMMANDS = {
    "speedwell": "from speedwell.cluster.cli import main; main(['no-such-command'])",
    "speedwell-nameserver": "from speedwell.fs.nameserver.main import main; sys.exit(main(['--no-such-flag']))",
    "speedwell-dataserver": "from speedwell.fs.dataserver.main import main; sys.exit(main(['--no-such-flag']))",
}


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_without_tearing_the_interpreter_down(command: str) -> None:
    done = run(LATE + COMMANDS[command])
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such" in done.stderr or "required" in done.stderr


ENDING = """
import atexit, sys, threading, time
from speedwell.fs.ending import run_to_the_end

def work():
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread")), daemon=False).start()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    sys.stdout.write("written ")
    {end}

run_to_the_end(work)
"""


@pytest.mark.parametrize("end, status, told", [
    ("return 3", 3, ""), ("sys.exit(143)", 143, ""), ("sys.exit()", 0, ""), ("sys.exit('why')", 1, "why"),
    ("raise ValueError('unforeseen')", 1, "ValueError: unforeseen"),
    ("raise KeyboardInterrupt", 130, ": interrupted\n")])
def test_the_end_flushes_waits_for_threads_and_does_what_is_registered(end: str, status: int, told: str) -> None:
    done = run(ENDING.format(end=end))
    assert (done.returncode, done.stdout) == (status, "written thread\nregistered\n")
    assert told in done.stderr


LOADING = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

from speedwell.cluster import executables
sys.meta_path.insert(0, Interrupting())
getattr(executables, sys.argv[2])()
"""


@pytest.mark.parametrize("module, name, told", [
    ("click", "speedwell", "speedwell: interrupted"), ("grpc", "nameserver", "speedwell-nameserver: interrupted")])
def test_an_executable_that_is_interrupted_while_it_loads_says_so_in_one_line(module: str, name: str,
                                                                              told: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADING, module, name], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", told + "\n")


def test_an_interrupt_that_a_library_would_swallow_is_raised_after_it_is_loaded() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loaded = False
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_after():
            with suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
            loaded = True
        assert loaded
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
