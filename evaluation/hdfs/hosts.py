"""The Java processes of the hosts: `python -m speedwell.evaluation.hdfs.hosts`, in a session of its own.

See `evaluation.replay.agents` for what it is told and answers. It starts the process of a host, whose command line
stands under `commands` in its first line, at the first request to it, and hands each request on; the processes
answer for themselves. All end together: with the input, or when the first of them ends.
"""

import json
import os
import signal
import subprocess
import sys
from typing import IO, Any


def main() -> None:
    """Hand on requests until the input or a process ends."""
    commands = json.loads(sys.stdin.buffer.readline())["commands"]
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def child_ended(*_: Any) -> None:
        for host, process in processes.items():
            if process.poll() is not None:
                print(f"the Java process of {host} has ended ({process.returncode})", file=sys.stderr, flush=True)
                os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGCHLD, child_ended)
    for line in sys.stdin.buffer:
        host = json.loads(line)["host"]
        if host not in processes:
            processes[host] = subprocess.Popen(commands[host], stdin=subprocess.PIPE, cwd="/")
        _hand_on(line, processes[host].stdin)
    os.killpg(0, signal.SIGKILL)     # a read that runs would hold its process up


def _hand_on(line: bytes, inlet: IO[bytes] | None) -> None:
    assert inlet is not None
    try:
        inlet.write(line)
        inlet.flush()
    except BrokenPipeError:
        os.kill(os.getpid(), signal.SIGCHLD)    # it has ended


if __name__ == "__main__":
    main()
