"""`speedwell-mount`: the filesystem as a directory of this machine."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import threading
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from speedwell.fs import command_line, logs, paths, tracing
from speedwell.fs import metrics as prometheus
from speedwell.fs.command_line import Number
from speedwell.fs.config import config_option
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.option_types import Host, Size
from speedwell.fuse_mount import binding, mountpoint
from speedwell.fuse_mount.daemon import Report, start_daemon
from speedwell.fuse_mount.errors import MountError
from speedwell.fuse_mount.monitor import Monitor, statistics_of

if TYPE_CHECKING:
    from speedwell.fs.client import Client

log = logging.getLogger(__name__)

# malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MALLOC_KEEP_BYTES = 32 << 20
MALLOC_ARENAS = 2
KERNEL_OPTIONS = ("ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec")
OF_CLIENT = ("controller", "local_host", "strong", "cache_directory", "cache_bytes", "identity")
# A thread that got its bytes from the network wants the interpreter at once, not after the default of 5 ms.
THREAD_SWITCH_SECONDS = 0.001
Directory = click.Path(file_okay=False, resolve_path=True, path_type=Path)


def _kernel_options(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(word for each in given for word in each.split(","))
    for word in words:
        if word not in KERNEL_OPTIONS:
            raise click.BadParameter(f"{word!r} is none of {', '.join(KERNEL_OPTIONS)}")
    return words


@click.command("speedwell-mount", context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.argument("mountpoint_", metavar="MOUNTPOINT", type=click.Path(path_type=Path))
@click.option("--nameserver", required=True, metavar="HOST:PORT", help="Where the nameserver listens.")
@click.option("--controller", metavar="URL[,URL]|installation", help="SDN controller that steers reads; without "
              "one every read takes the nearest replica.")
@click.option("--local-host", metavar="IP", type=Host(), help="Address of this host on the fabric.")
@click.option("--cache-seconds", type=Number(0, 3600), default=1.0, show_default=True,
              help="How old attributes may be that a look-up (not an open) answers.")
@click.option("--parts", type=click.IntRange(1, 16), default=2, show_default=True,
              help="The most replicas that a read may come from at once, where the controller expects that to be "
              "faster.")
@click.option("--strong", is_flag=True,
              help="A read sees every append acknowledged before it to any client. Files opened for reading "
              "only are then read past the kernel's cache.")
@command_line.identity_option("This mount's")
@click.option("--foreground", is_flag=True, help="Do not become a daemon.")
@click.option("--allow-other/--no-allow-other", default=None,
              help="Let users other than the mount's owner in. Default: only if the owner is root.")
@click.option("--acl", is_flag=True, help="Support POSIX access control lists. A namespace in which any was ever set "
              "has them without that.")
@click.option("--staging-directory", type=Directory, default=Path("/var/tmp"),
              show_default=True, help="Where changes lie until a program flushes or closes the file.")
@click.option("--cache-directory", type=Directory,
              help="Keep what was read in this directory, which belongs to one mount alone.  [default: nowhere]")
@click.option("--cache-size", "cache_bytes", type=Size(64 << 20), default=10 << 30, show_default="10GiB",
              help="The most that the cache takes there.")
@click.option("--options", "-o", "kernel_options", metavar="WORDS", multiple=True, callback=_kernel_options,
              help=f"What the kernel is to allow, as mount(8) has it: {', '.join(KERNEL_OPTIONS)}. "
              "Default: rw, nosuid, nodev, exec.")
@click.option("--subdirectory", metavar="PATH", default="/",
              help="Show this directory of the filesystem, in place of its root.")
@click.option("--source", metavar="TEXT", help="What `df` and the mount table show as the source.")
@prometheus.OPTION
@logs.OPTION
@click.option("--log", "log_file", type=click.Path(dir_okay=False, path_type=Path),
              help="File for the log. Default: standard error with --foreground, otherwise "
              "/var/log/speedwell (root) or ~/.local/state/speedwell.")
def command(mountpoint_: Path, log_file: Path | None, foreground: bool, **options: Any) -> int:
    """Mount a Speedwell filesystem on the empty directory MOUNTPOINT.

    Prints `ready MOUNTPOINT` once it works. Unmount with `fusermount3 -u MOUNTPOINT` or SIGTERM.
    """
    prometheus.check(options["metrics"])
    mountpoint.require_fuse()
    library = binding.load_library()
    place = mountpoint.prepare(mountpoint_)
    log_file = None if foreground and log_file is None else _writable(log_file or default_log(place))
    if options["allow_other"] is None:
        options["allow_other"] = os.geteuid() == 0
    mountpoint.require_permission(place, allow_other=options["allow_other"])
    mountpoint.require_writable(options["staging_directory"])
    if not options["source"]:
        options["source"] = "speedwell@{nameserver}:{subdirectory}".format(**options).removesuffix(":/")
    if foreground or log_file is None:
        return _serve(Report(), library, place, log_file, options)
    return start_daemon(lambda report: _serve(report, library, place, log_file, options, needs_dataserver=True),
                        log_file)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: command_line.run(command, "speedwell-mount", arguments))


def default_log(place: Path) -> Path:
    """The log file of a daemon that serves `place`."""
    if os.geteuid() == 0:
        directory = Path("/var/log/speedwell")
    else:
        state = os.environ.get("XDG_STATE_HOME")
        directory = (Path(state) if state else Path.home() / ".local" / "state") / "speedwell"
    return directory / f"mount{str(place).replace('/', '-')}.log"


def _writable(log_file: Path) -> Path:
    log_file = log_file.absolute()
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("a"):
            return log_file
    except OSError as error:
        raise MountError(f"the log file {log_file} cannot be written: {error.strerror}") from None


def _serve(report: Report, library: ModuleType, place: Path, log_file: Path | None, options: dict[str, Any], *,
           needs_dataserver: bool = False) -> int:
    """Mount and serve until unmounted; the exit status of the process. With `needs_dataserver` a mount of names
    without bytes is refused; what a supervisor starts again has to wait for dataservers, too."""
    # The client starts threads, which a fork would lose: everything that does is imported and made here.
    from speedwell.fs.client import Client
    from speedwell.fs.errors import SpeedwellError
    from speedwell.fuse_mount.operations import SpeedwellOperations
    from speedwell.fuse_mount.requests import Requests

    logs.configure(options["log_level"], log_file)
    tracing.start("speedwell-mount", str(place))
    try:
        client = Client(options["nameserver"], metadata_cache_seconds=options["cache_seconds"],
                        most_parts=options["parts"], **{name: options[name] for name in OF_CLIENT})
        acls = client.statistics().acls or options["acl"]
        root = _root_of(client, options["subdirectory"])
        if needs_dataserver:
            client.require_dataservers()
        session = Requests(library, partial(binding.tune, acls=acls), root)
        mounted = threading.Event()
        operations = SpeedwellOperations(client, session, mounted.set, str(options["staging_directory"]), root)
        if options["metrics"]:
            from speedwell.fuse_mount.metrics import MountMetrics  # takes 10 MiB

            collector = MountMetrics(str(place), options["nameserver"], session.measures, client,
                                     lambda: operations.open_files, options["identity"])
            prometheus.serve(options["metrics"], [collector], options["identity"])
    except (SpeedwellError, MountError) as error:
        report.failed(f"speedwell-mount: {error}")
        return 1
    monitor = Monitor(lambda: statistics_of(session, operations.open_files), session.access_log)
    threading.Thread(target=_announce, args=(place, options["nameserver"], mounted, report, monitor),
                     daemon=True).start()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    gc.freeze()
    _keep_freed_memory()
    try:
        status = session.serve(operations, str(place), binding.mount_options(
            **{name: options[name] for name in ("source", "allow_other", "kernel_options")}), binding.MAX_THREADS)
        if status < 0:
            log.error("the mount ended with the error %s", os.strerror(-status))
            return 1
    except MountError as error:
        report.failed(f"speedwell-mount: {error}")
        return 1
    finally:
        monitor.stop()
        client.close()
    log.info("unmounted %s", place)
    return 0


def _root_of(client: Client, subdirectory: str) -> int:
    from speedwell.fs.proto.speedwell_pb2 import DIRECTORY

    attributes = client.lookup(paths.normalise(subdirectory, "--subdirectory"))
    if attributes.type != DIRECTORY:
        raise MountError(f"--subdirectory: {subdirectory} is not a directory of the filesystem")
    return attributes.inode


def _keep_freed_memory() -> None:
    """Let malloc keep what it frees: libfuse allocates a buffer of up to 1 MiB per request, and to map it, to
    touch its pages and to unmap it costs more than to fill it. Only glibc can be told."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MALLOC_KEEP_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MALLOC_KEEP_BYTES)
        libc.mallopt(M_ARENA_MAX, MALLOC_ARENAS)


def _announce(place: Path, nameserver: str, mounted: threading.Event, report: Report, monitor: Monitor) -> None:
    """Wait until the kernel talks to us, ask it for our root as any program would, and say so."""
    mounted.wait()
    try:
        device = place.stat().st_dev
    except OSError as error:
        log.error("the mount does not answer: %s", error)
        return
    if not mountpoint.raise_read_ahead(place):
        log.info("read-ahead stays at the kernel's default (only root can raise it)")
    try:
        monitor.start(device)
    except OSError as error:
        log.warning("`speedwell top` and `accesslog` do not see this mount: %s", error)
    log.info("mounted %s from %s", place, nameserver)
    report.ready(f"ready {place}")


if __name__ == "__main__":
    main()
