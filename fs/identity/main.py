"""The command `speedwell-certificates`."""

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from speedwell.fs import command_line, logs, systemd
from speedwell.fs import metrics as prometheus
from speedwell.fs.config import config_option
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.errors import IdentityError, InvalidArgument, SpeedwellError
from speedwell.fs.identity import files
from speedwell.fs.identity.keeper import keep_renewed, renew_own

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


@click.command("speedwell-certificates", context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.option("--directory", required=True, metavar="DIR", type=click.Path(path_type=Path),
              help="The identities of this machine, from `speedwell init` or `speedwell join`.")
@click.option("--listen", metavar="HOST:PORT", help="Where the authority is: give certificates to machines that "
              "join, and new ones to those that have.")
@prometheus.OPTION
@logs.OPTION
def command(directory: Path, listen: str | None, metrics: str | None, log_level: str) -> None:
    """Keep the certificates of a machine renewed."""
    logs.configure(log_level)
    prometheus.check(metrics)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    said = "ready"
    measured = None
    if metrics is not None:
        from speedwell.fs.identity.metrics import CertificateMetrics  # takes 10 MiB

        measured = CertificateMetrics(directory)
        prometheus.serve(metrics, [measured], files.any_identity(directory))
    if listen is not None:
        from speedwell.fs.identity.enrollment import Enrollment  # takes memory

        with suppress(SpeedwellError, OSError):     # it is tried again, and told
            renew_own(directory)    # nobody asks one whose own has expired while it was off
        server = Enrollment(directory, listen)
        if measured is not None:
            server.note_answer = measured.note_answer
        said = f"ready {listen.rpartition(':')[0]}:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=keep_renewed, daemon=True, args=(
        directory, threading.Event(), *([measured.note_trouble] if measured else []))).start()
    systemd.ready(said)
    systemd.wait_for(STOP_SIGNALS, lambda: listen is None or _answers(said.removeprefix("ready ")))


def _answers(address: str) -> bool:
    from speedwell.fs.identity.joining import SECONDS, authority_at

    began = time.monotonic()
    try:
        return bool(authority_at(address))
    except IdentityError:
        return time.monotonic() - began < SECONDS / 2   # it works, and has as many connections as it takes


def status_of(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status: 0 stopped, 1 could not start, 2 bad flags."""
    return command_line.run(command, "speedwell-certificates", arguments, wrong_usage=(InvalidArgument,))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: status_of(arguments))


if __name__ == "__main__":
    main()
