"""A whole installation on this machine's loopback: nameservers, dataservers, mount; no controller, no root.

A supervisor (`speedwell.cluster.local_supervisor`) stays behind `up` and starts again what ends, until `down`.

    DIRECTORY/nameserver/        the namespace (speedwell.cluster.nameservers says what several of them keep where)
    DIRECTORY/dataservers/NAME/  what each dataserver stores
    DIRECTORY/{state.json,lock,logs/}  as speedwell.cluster.processes keeps them
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedwell.cluster import current, identities, local_metrics, mounts, parts
from speedwell.cluster.errors import AlreadyRunning, InvalidSetting, InvalidState, NotRunning
from speedwell.cluster.local_commands import (
    LOOPBACK,
    address,
    dataserver_command,
    dataserver_names,
    has_certificates,
    identity_names,
    is_mounted,
    listen_address,
    local_nameserver_commands,
    members,
    mount_command,
    ours,
    over_supervisor,
    start_supervisor,
)
from speedwell.cluster.nameservers import (
    MAX_NAMESERVERS,
    etcd_commands,
    etcd_names,
    free_ports,
    nameserver_names,
    require_etcd,
    stop_etcd,
)
from speedwell.cluster.processes import Processes
from speedwell.cluster.registration import own_root_directory, wait_for_dataservers
from speedwell.fs.identity import roles
from speedwell.fs.units import counted, size

DEFAULT_DATASERVERS = 3
DEFAULT_REPLICATION = 3
DEFAULT_CHUNK_SIZE_BYTES = 256 << 20
MAX_DATASERVERS = 64
MIN_CHUNK_SIZE_BYTES = 64 << 10
MAX_CHUNK_SIZE_BYTES = 1 << 40

Progress = Callable[[str], None]


@dataclass(frozen=True)
class LocalSettings:
    """What to start. None means: as the installation in `directory` was last started, else the default
    (no mount, 3 dataservers, as many replicas up to 3, chunks of 256 MiB, one nameserver, `fsync` and `min_replicas`
    as the nameserver has them, nobody answers Prometheus, with identities, one directory a dataserver, contents in
    the clear)."""

    directory: Path
    mount: Path | None = None
    dataservers: int | None = None
    replication: int | None = None
    chunk_size_bytes: int | None = None
    nameservers: int | None = None
    fsync: str | None = None
    min_replicas: int | None = None
    metrics: bool | None = None
    identity: bool | None = None
    directories_per_server: int | None = None
    encrypt_data: bool | None = None
    metadata_servers: int | None = None


@dataclass(frozen=True)
class Started:
    """What `up` found or made: `started` names the processes it had to start, none if all ran already."""

    current: current.Current
    started: list[str]
    replication: int
    dataservers: int


def up(settings: LocalSettings, progress: Progress = lambda message: None) -> Started:
    """Start what does not run of the installation in `settings.directory`, making it if there is none.

    Stored files are kept. Raises InvalidSetting (nothing was touched), AlreadyRunning (another command is
    at work on it, or it runs with other settings), StartFailed (what this call started is stopped again).
    """
    directory = locate(settings.directory)
    processes = _open(directory)
    with over_supervisor(processes, "`speedwell up`"):
        chosen = _choose(settings, directory, processes)
        names = dataserver_names(chosen)
        mountpoint = Path(chosen["mount"]) if chosen["mount"] else None
        _stop_unconfirmed(processes)
        _prepare_mountpoint(mountpoint, directory, processes)
        started: list[str] = []
        recorded, processes.settings = processes.settings, chosen
        try:
            if has_certificates(chosen):
                identities.prepare(directory, identity_names(chosen), LOOPBACK)
            _start_etcd(processes, started, progress)
            _start_nameservers(processes, started, progress)
            _start_dataservers(processes, names, started, progress)
            if any(name in started for name in nameserver_names(chosen["nameservers"])):
                own_root_directory(processes.settings["addresses"]["nameserver"], _operator(processes))
            if mountpoint is not None:
                _start_mount(processes, mountpoint, started, progress)
            start_supervisor(processes, started)
            local_metrics.write_targets(processes, local_metrics.of_etcd(LOOPBACK, chosen))
        except BaseException:
            _stop(processes, started, force=True)
            processes.settings = {**recorded, **_lasting(chosen)}
            processes.save()
            raise
    return Started(_current(directory, chosen), started, chosen["replication"], chosen["dataservers"])


def down(directory: Path, *, force: bool = False, progress: Progress = lambda message: None) -> list[str]:
    """Unmount and stop the installation in `directory`; returns what was stopped. Stored files stay.

    `force` unmounts a busy mount lazily. Raises NotRunning if `directory` holds no installation,
    StopFailed if the mount is busy (then nothing was stopped) or a process survives.
    """
    directory = locate(directory)
    processes = Processes(directory)
    if processes.settings.get("kind") not in ("local", parts.KIND):
        raise NotRunning(f"{directory} holds no local Speedwell installation")
    with over_supervisor(processes, "`speedwell down`"):
        stopped = [record.name for record in processes.running()]
        mountpoint = processes.settings["mount"]
        if mountpoint and ours(processes, Path(mountpoint)) and "mount" not in stopped:
            stopped.append("mount")
        _stop(processes, stopped, force, progress)
        processes.forget_dead()
        identities.forget(processes.settings["addresses"].get("nameserver", ""))
    return sorted(stopped)


def describe(directory: Path) -> current.Current:
    """The installation in `directory`, running or not. Raises NotRunning if it holds none."""
    directory = locate(directory)
    processes = Processes(directory)
    settings = processes.settings
    if settings.get("kind") == parts.KIND:
        return parts.described(processes)
    if settings.get("kind") != "local" or "nameserver" not in settings["addresses"]:
        raise NotRunning(f"{directory} holds no local Speedwell installation")
    return _current(directory, settings)


def _current(directory: Path, settings: dict[str, Any]) -> current.Current:
    return current.Current("local", str(directory), settings["addresses"]["nameserver"],
                           mounts=[settings["mount"]] if settings["mount"] else [],
                           identity=str(identities.of_operator(directory)) if settings.get("identity") else "")


def locate(directory: Path) -> Path:
    """The one name of an installation's directory, whatever links led to it."""
    return Path(os.path.realpath(directory))


# ------------------------------------------------------------------ settings


def _open(directory: Path) -> Processes:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        contents = sorted(path.name for path in directory.iterdir() if not path.name.startswith(".state.json."))
    except FileExistsError:
        raise InvalidSetting(f"--local: {directory} is not a directory") from None
    except OSError as error:
        raise InvalidSetting(f"--local: {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK):
        raise InvalidSetting(f"--local: {directory} is not writable for this user")
    # An `up` that was killed in its first moments may have left these and nothing else.
    if "state.json" not in contents and set(contents) - {"lock", "logs", identities.FOLDER}:
        raise InvalidSetting(f"--local: {directory} is not empty and holds no Speedwell installation "
                             f"(it has {contents[0]}); name a new or empty directory")
    processes = Processes(directory)
    if processes.settings.get("kind", "local") != "local":
        raise InvalidState(f"{directory} belongs to an installation of another kind "
                           f"({processes.settings['kind']})")
    return processes


def _choose(settings: LocalSettings, directory: Path, processes: Processes) -> dict[str, Any]:
    """The settings to run with: those given, else those recorded, else the defaults."""
    recorded, running = processes.settings, processes.running()
    dataservers = settings.dataservers or recorded.get("dataservers", DEFAULT_DATASERVERS)
    replication = settings.replication or recorded.get("replication", min(DEFAULT_REPLICATION, dataservers))
    chunk_size_bytes = settings.chunk_size_bytes or recorded.get("chunk_size_bytes", DEFAULT_CHUNK_SIZE_BYTES)
    mount = str(mounts.locate(settings.mount)) if settings.mount else recorded.get("mount")
    if settings.nameservers and settings.metadata_servers:
        raise InvalidSetting("--metadata-servers: it does not go with --nameservers, of which one leads")
    if settings.metadata_servers == 1:
        raise InvalidSetting("--metadata-servers: one nameserver owns everything without it; name 2 or more")
    nameservers = settings.metadata_servers or settings.nameservers or recorded.get("nameservers", 1)
    shared = settings.metadata_servers is not None or (recorded.get("shared", False) and not settings.nameservers)
    if "nameservers" in recorded and shared != recorded.get("shared", False):
        raise InvalidSetting(f"--metadata-servers: {directory} was made "
                             f"{'without' if shared else 'with'} it; that cannot be changed later")
    option, least = ("--metadata-servers", 2) if shared else ("--nameservers", 1)
    if not least <= nameservers <= MAX_NAMESERVERS:
        raise InvalidSetting(f"{option}: {nameservers} is not between {least} and {MAX_NAMESERVERS}")
    if nameservers != recorded.get("nameservers", nameservers):
        raise InvalidSetting(f"{option}: {directory} was made with {recorded['nameservers']}; that cannot be "
                             "changed later")
    if nameservers > 1:
        require_etcd()
    if not 1 <= dataservers <= MAX_DATASERVERS:
        raise InvalidSetting(f"--dataservers: {dataservers} is not between 1 and {MAX_DATASERVERS}")
    if dataservers < recorded.get("dataservers", 0):
        raise InvalidSetting(f"--dataservers: {directory} was made with {recorded['dataservers']}; the files "
                             "on the others would lose replicas")
    directories = settings.directories_per_server or recorded.get("directories_per_server", 1)
    if directories < recorded.get("directories_per_server", 1):
        raise InvalidSetting(f"--directories-per-server: {directory} was made with "
                             f"{recorded['directories_per_server']}; the replicas in the others would be lost")
    if not 1 <= replication <= dataservers:
        raise InvalidSetting(f"--replication: {replication} is not between 1 and the number of dataservers "
                             f"({dataservers})")
    if not MIN_CHUNK_SIZE_BYTES <= chunk_size_bytes <= MAX_CHUNK_SIZE_BYTES:
        raise InvalidSetting(f"--chunk-size: {size(chunk_size_bytes)} is not between "
                             f"{size(MIN_CHUNK_SIZE_BYTES)} and {size(MAX_CHUNK_SIZE_BYTES)}")
    chosen = {"kind": "local", "mount": mount, "dataservers": dataservers, "replication": replication,
              "chunk_size_bytes": chunk_size_bytes, "nameservers": nameservers,
              **({"shared": True} if shared else {}),
              "etcd_ports": recorded.get("etcd_ports", []), "addresses": recorded.get("addresses", {}),
              "namespace": recorded.get("namespace", False), "fsync": settings.fsync or recorded.get("fsync"),
              "min_replicas": settings.min_replicas or recorded.get("min_replicas"), "metrics": {},
              "directories_per_server": directories,
              # one that was started before there were identities goes on without them until it is stopped
              "identity": recorded.get("identity", not running) if settings.identity is None else settings.identity,
              "encrypt_data": recorded.get("encrypt_data", False) if settings.encrypt_data is None
              else settings.encrypt_data}
    if settings.metrics or recorded.get("metrics"):
        chosen["metrics"] = local_metrics.addresses(
            recorded.get("metrics", {}),
            [*nameserver_names(nameservers), *dataserver_names(chosen), *(["mount"] if mount else []),
             local_metrics.SUPERVISOR],
            [record.name for record in processes.running()], LOOPBACK)
    _refuse_other_settings(recorded, chosen, processes)
    return chosen


def _lasting(chosen: dict[str, Any]) -> dict[str, Any]:
    """What an `up` that fails leaves: an etcd that has begun is found by its ports only."""
    kept = ("nameservers", "shared", "etcd_ports") if chosen["etcd_ports"] else ()
    return {name: chosen[name] for name in kept if name in chosen}


def _refuse_other_settings(recorded: dict[str, Any], chosen: dict[str, Any], processes: Processes) -> None:
    running = [record.name for record in processes.running()]
    nameservers = nameserver_names(chosen["nameservers"])
    options = {"mount": ["mount"], "replication": nameservers, "chunk_size_bytes": nameservers, "fsync": nameservers,
               "min_replicas": nameservers, "directories_per_server": dataserver_names(chosen)}
    for setting, called in (("identity", "identities"), ("encrypt_data", "--encrypt-data"), ("metrics", "--metrics")):
        if running and bool(chosen[setting]) != bool(recorded.get(setting)):
            raise AlreadyRunning(f"{processes.directory} runs {'without' if chosen[setting] else 'with'} {called}; "
                                 f"stop it with `speedwell down --local {processes.directory}` first")
    for setting, affected in options.items():
        before = recorded.get(setting, 1 if setting == "directories_per_server" else None)
        if set(affected) & set(running) and before != chosen[setting]:
            option = f" --{setting.removesuffix('_bytes').replace('_', '-')}"
            shown = size(before) if before and setting == "chunk_size_bytes" else before
            raise AlreadyRunning(f"{processes.directory} runs "
                                 f"{f'without{option}' if before is None else f'with{option} {shown}'}; stop it "
                                 f"with `speedwell down --local {processes.directory}` first")


def _prepare_mountpoint(mountpoint: Path | None, directory: Path, processes: Processes) -> None:
    if mountpoint is None or is_mounted(processes, mountpoint):
        return
    if mountpoint == directory or directory in mountpoint.parents or mountpoint in directory.parents:
        raise InvalidSetting(f"--mount: {mountpoint} and --local {directory} must not lie inside each other")
    if ours(processes, mountpoint):
        mounts.unmount(mountpoint, lazy=True)  # its process died and the kernel still shows it
    mounts.require_usable(mountpoint)


# --------------------------------------------------------------------- start


def _stop_unconfirmed(processes: Processes) -> None:
    """Stop what an `up` that was killed had started and not yet seen ready."""
    processes.stop(names=[record.name for record in processes.running() if not record.address])
    processes.forget_dead()


def _start_etcd(processes: Processes, started: list[str], progress: Progress) -> None:
    """What several nameservers share. Its ports are chosen once: its members know each other by them."""
    settings = processes.settings
    names = etcd_names(settings["nameservers"])
    missing = [name for name in names if not processes.find(name)]
    if not missing:
        return
    if not settings["etcd_ports"]:
        kinds = 3 if settings["identity"] else 2
        ports = free_ports(LOOPBACK, kinds * len(names))
        settings["etcd_ports"] = [ports[first:first + kinds] for first in range(0, len(ports), kinds)]
        processes.save()
    progress("starting etcd")
    commands = etcd_commands(processes.directory, LOOPBACK, members(settings))
    for record in processes.start_together([command for command in commands if command.name in missing]):
        started.append(record.name)


def _start_nameservers(processes: Processes, started: list[str], progress: Progress) -> None:
    settings, addresses = processes.settings, processes.settings["addresses"]
    names = nameserver_names(settings["nameservers"])
    before = addresses["nameserver"].split(",") if "nameserver" in addresses else [""] * len(names)
    found = [processes.find(name) for name in names]
    listen = [address(running.address, running.name) if running else listen_address(last)
              for running, last in zip(found, before, strict=True)]
    if listen != before:
        identities.forget(addresses.get("nameserver", ""))
        # Somebody else took the port meanwhile: what still runs would ask a nameserver that is not there.
        for mountpoint in mounts.of_installation(processes.directory, addresses.get("nameserver", "")):
            if not ours(processes, mountpoint):
                progress(f"unmounting {mountpoint}, as the nameserver gets another address: mount it again then")
                mounts.unmount(mountpoint, lazy=True)
        _stop(processes, [record.name for record in processes.running()
                          if record.name not in etcd_names(len(names))], force=True)
        found = [None] * len(names)
    missing = [name for name, running in zip(names, found, strict=True) if running is None]
    if missing:
        progress("starting the nameserver" if len(names) == 1 else f"starting {len(missing)} nameservers")
    processes.start_together([command for command in local_nameserver_commands(processes, listen)
                              if command.name in missing])
    started += missing
    addresses["nameserver"] = ",".join(address(record.address, name) for name in names
                                       if (record := processes.find(name)))
    settings["namespace"] = True
    processes.save()
    if settings["identity"]:
        identities.remember(addresses["nameserver"], processes.directory)


def _start_dataservers(processes: Processes, names: list[str], started: list[str],
                       progress: Progress) -> None:
    missing = [name for name in names if not processes.find(name)]
    addresses = processes.settings["addresses"]
    commands = [dataserver_command(processes, name, listen_address(addresses.get(name))) for name in missing]
    if commands:
        progress(f"starting {counted(len(commands), 'dataserver')}")
    for record in processes.start_together(commands):
        started.append(record.name)
        addresses[record.name] = address(record.address, record.name)
    processes.save()
    wait_for_dataservers(addresses["nameserver"], names, _operator(processes))


def _operator(processes: Processes) -> Path | None:
    return identities.of_operator(processes.directory) if processes.settings["identity"] else None


def _start_mount(processes: Processes, mountpoint: Path, started: list[str], progress: Progress) -> None:
    if is_mounted(processes, mountpoint):
        return
    progress(f"mounting at {mountpoint}")
    started.append("mount")  # before it is ready: a mount that fails half-way has to be unmounted too
    processes.start(mount_command(processes, mountpoint))


# ---------------------------------------------------------------------- stop


def _stop(processes: Processes, names: list[str], force: bool,
          progress: Progress = lambda message: None) -> None:
    """Unmount first (a busy mount stops nothing), then stop the supervisor, which would mount again, the dataservers,
    the nameservers, and etcd. The installation's lock keeps the supervisor from starting anything meanwhile."""
    if "mount" in names:
        mountpoint = Path(processes.settings["mount"])
        progress(f"unmounting {mountpoint}")
        if processes.find("mount") or ours(processes, mountpoint):
            mounts.unmount(mountpoint, lazy=force or mounts.stopped_process(mountpoint) is not None)
        processes.stop(names=["mount"])
        if ours(processes, mountpoint):
            mounts.unmount(mountpoint, lazy=True)  # it had to be killed
    progress("stopping the servers")
    processes.stop(names=[name for name in names if name == local_metrics.SUPERVISOR])
    number = processes.settings["nameservers"]
    last = [nameserver_names(number), [*etcd_names(number), roles.ETCD]]
    first = [name for name in names if name not in ("mount", *last[0], *last[1])]
    for group in (first, last[0]):
        processes.stop(names=[name for name in names if name in group])
    stop_etcd(processes, [name for name in names if name in last[1]])
