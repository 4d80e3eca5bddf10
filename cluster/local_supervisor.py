"""Stays behind `speedwell up` where there is no fabric: `python -m speedwell.cluster.local_supervisor DIRECTORY`.

It starts again what ends. It is one of the installation's processes: `down` stops it, and `up` starts it again if it
was killed. It needs nothing but what is on the disk, so a new one goes on where the old one ended.
"""

import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from speedwell.cluster import local_commands, local_metrics, parts
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.identities import FOLDER
from speedwell.cluster.local_commands import has_certificates
from speedwell.cluster.processes import Processes
from speedwell.cluster.supervision import Supervision
from speedwell.fs import logs
from speedwell.fs.identity.keeper import keep_renewed


def main() -> None:
    """Entry of the background process; prints `ready` when it watches."""
    logs.configure()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(sys.argv[1])
    processes = Processes(directory)
    with suppress(KeyboardInterrupt, NotRunning):
        kind = parts if processes.settings["kind"] == parts.KIND else local_commands
        supervision = Supervision(processes, lambda: kind.wanted(processes),
                                  lambda name: kind.command_again(processes, name))
        local_metrics.serve(processes, supervision)
        if has_certificates(processes.settings):
            threading.Thread(target=keep_renewed, args=(directory / FOLDER, threading.Event()),
                             daemon=True).start()
        print("ready watching", flush=True)
        supervision.run()


if __name__ == "__main__":
    main()
