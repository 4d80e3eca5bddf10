"""The parts of a machine that work with the switches: the scheduler of turns, the host agent, a metadata server.

    DIRECTORY/timeslices.toml, host-agent.toml, metadata-store.toml    their settings
    DIRECTORY/agent-keys/    the scheduler's key, of which agents' are made; an agent's own

The scheduler's key is made of the certificate authority's, so that an authority that goes on from a copy has it too.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from speedwell.cluster.errors import InvalidSetting
from speedwell.coflow.host_heartbeat import interface_of
from speedwell.fs import durable
from speedwell.fs.addresses import bracketed
from speedwell.fs.identity import files
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import HOST_AGENT, METADATA_STORE, SCHEDULER
from speedwell.host_agent.channel import agent_key

TIMESLICES = "timeslices"
"""What a scheduler's files and process are called."""

PORT, METRICS_PORT = 6657, 6658
KEYS, ALL = "agent-keys", "all"
PURPOSE = "speedwell host agents"


def told(authority: Path, chosen: Collection[str], address: str, known: Mapping[str, str]) -> dict[str, str]:
    """What a machine with this address gets for these parts, beside what is `known` of the installation: its
    controller, and the scheduler. `authority` is the directory of the certificate authority. Raises InvalidSetting,
    IdentityError."""
    wanted = [role for role in (SCHEDULER, HOST_AGENT, METADATA_STORE) if role in chosen]
    if not wanted:
        return {}
    if not address or ":" in address:
        raise InvalidSetting(f"--address: the role {wanted[0]} needs the machine's IPv4 address")
    if not known.get("controller") and wanted != [HOST_AGENT]:
        raise InvalidSetting(f"{wanted[-1]}: no machine has a controller yet, which it needs")
    key, found = Authority(authority).secret(PURPOSE).encode(), {"host": address}
    schedulers = [each for each in known.get("scheduler", "").split(",") if each]
    if SCHEDULER in chosen:
        own = f"{bracketed(address)}:{PORT}"
        found |= {"turns_key": key.decode(), "standby_for": ",".join(each for each in schedulers if each != own)}
        schedulers = list(dict.fromkeys([*schedulers, own]))
        if len(schedulers) > 2:
            raise InvalidSetting(f"{SCHEDULER}: {' and '.join(schedulers[:2])} are the schedulers: one gives turns, "
                                 "one stands by")
    if HOST_AGENT in chosen:
        if not schedulers:
            raise InvalidSetting(f"{HOST_AGENT}: no machine has the role {SCHEDULER} yet, which it obeys")
        found["agent_key"] = agent_key(key, address).decode()
    return {**found, "scheduler": ",".join(schedulers)}


def settings(directory: Path, found: Mapping[str, str], chosen: Collection[str], identity: Path, is_root: bool,
             rate_bps: int | None) -> dict[str, dict[str, Any]]:
    """Of those of these parts that a machine has, by name; `found` is what it was told, `identity` where the
    scheduler's certificate is. Writes their keys. Raises InvalidSetting."""
    made: dict[str, dict[str, Any]] = {}
    place, address = directory / KEYS, found.get("host", "")
    keys: list[tuple[Path, bytes]] = []
    if SCHEDULER in chosen:
        keys.append((key_file(place), found["turns_key"].encode() + b"\n"))
        made[TIMESLICES] = {
            "controller": found["controller"], "identity": identity,
            "listen": f"{bracketed(address)}:{PORT}", "standby_for": found.get("standby_for") or None,
            "key_file": keys[-1][0], "metrics": f"127.0.0.1:{METRICS_PORT}", "realtime": is_root}
    if "agent_key" in found:
        keys.append((key_file(place, address), found["agent_key"].encode() + b"\n"))
        made[HOST_AGENT] = {
            "address": address, "scheduler": found["scheduler"], "key_file": keys[-1][0],
            "rate": rate_bps or link_bps(address), "realtime": is_root}
    if METADATA_STORE in chosen:
        made[METADATA_STORE] = {
            "store": f"leveldb:{directory / METADATA_STORE}", "controller": found["controller"], "host": address,
            "identity": identity.parent / address}
    if keys:
        files.make_directory(place)
        durable.replace_all(keys)
    return made


def link_bps(address: str) -> int:
    """What the link with this address of the machine carries, in bits a second, as its driver says. Raises
    InvalidSetting."""
    interface = interface_of(address)
    try:
        megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        megabits = 0
    if megabits <= 0:
        raise InvalidSetting(f"--rate: the kernel does not know how many bits a second {interface} carries: say so")
    return megabits * 1_000_000


def key_file(place: Path, owner: str = ALL) -> Path:
    """Of the host with that address, or the one of all."""
    return place / f"{owner}.key"
