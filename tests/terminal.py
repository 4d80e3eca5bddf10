"""A command on a terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command whose standard output and error are a terminal of so many columns and 50 lines."""

    def __init__(self, command: Sequence[str], columns: int, environment: Mapping[str, str] | None = None) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        kept = {name: value for name, value in (environment or os.environ).items()
                if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
                                        env={**kept, "TERM": "xterm-256color"}, start_new_session=True)
        os.close(follower)

    def read(self) -> str:
        """What comes next; empty at the end."""
        try:
            return os.read(self._leader, 1 << 16).decode(errors="replace")
        except OSError:         # EIO: nobody writes to it any more
            return ""

    def close(self) -> int:
        """The exit code."""
        os.close(self._leader)
        return self.process.wait(60)


def shown(command: Sequence[str], columns: int, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a command, and the plain text that it shows."""
    terminal = Terminal(command, columns, environment)
    text = ""
    while piece := terminal.read():
        text += piece
    return terminal.close(), plain(text)


def plain(text: str) -> str:
    """Without colours and line ends of a terminal."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n")
