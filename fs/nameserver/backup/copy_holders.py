"""Who has a complete copy of the namespace, and which copy to take when the nameserver has lost its own.

Pure: nothing here knows of stores, sockets or clocks.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from speedwell.fs.errors import DatabaseDamaged
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Position

HOLDERS_KEY = b"\x00holders"
"""Of the list in the store: hidden from the namespace, copied with it."""

FORCE_FLAG = "--rebuild-from-what-is-there"


@dataclass(frozen=True, slots=True)
class Holders:
    """The dataservers whose copies a nameserver that lost its own must have heard of. A list is never changed but for
    one member, so among the members of any list, if all of them report, one knows the newest list."""

    namespace: bytes = b""
    version: int = 0
    members: tuple[str, ...] = ()

    def message(self) -> pb.Holders:
        return pb.Holders(namespace=self.namespace, version=self.version, dataserver_ids=self.members)

    @classmethod
    def of(cls, message: pb.Holders) -> "Holders":
        return cls(message.namespace, message.version, tuple(message.dataserver_ids))


def encode_holders(holders: Holders) -> bytes:
    """As the list lies in a store, which knows its namespace."""
    return json.dumps({"version": holders.version, "members": holders.members}).encode()


def decode_holders(namespace: bytes, value: bytes) -> Holders:
    """Raises DatabaseDamaged."""
    try:
        record = json.loads(value)
        return Holders(namespace, int(record["version"]), tuple(record["members"]))
    except (ValueError, KeyError, TypeError):
        raise DatabaseDamaged("the record of those who hold copies of the namespace is damaged") from None


def position_message(position: Position) -> pb.StorePosition:
    return pb.StorePosition(namespace=position.namespace, timeline=position.timeline, sequence=position.sequence,
                            parent=position.parent, forked_after=position.forked_after)


def position_of(message: pb.StorePosition) -> Position:
    return Position(message.namespace, message.timeline, message.sequence, message.parent, message.forked_after)


@dataclass(frozen=True, slots=True)
class Report:
    """What a dataserver says: the list it knows, and how far its copy is, if it has a complete one."""

    holders: Holders = field(default_factory=Holders)
    mirror: Position | None = None
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be served yet; `why` tells an operator what is waited for."""

    why: str


@dataclass(frozen=True, slots=True)
class Take:
    """Serve the state at `position`, which the dataserver `source` has; none: the nameserver itself has it."""

    source: str | None
    position: Position
    holders: Holders


def decide(reports: Mapping[str, Report], own: Report, *, namespace: bytes, force: bool) -> Wait | Take:
    """Which copy to serve. `namespace` is the one the nameserver had, empty if it does not know; `own` is what its
    own database says, if that can be read. With `force` holders that do not report are not waited for."""
    known = {report.holders.namespace for report in reports.values()} - {b""}
    namespace = namespace or own.holders.namespace
    if not namespace:
        if len(known) > 1:
            return Wait(f"one namespace: dataservers of {len(known)} report ({_names(reports)}); stop those that do "
                        "not belong here")
        if not known:
            return Wait("a dataserver that belongs to a namespace; a nameserver that is to begin a new one is "
                        "started with --new")
        namespace = known.pop()
    emptied = {name for name, report in reports.items() if report == Report()}
    reports = {name: report for name, report in reports.items() if report.holders.namespace == namespace}
    newest = max([own.holders, *(report.holders for report in reports.values())], key=lambda holders: holders.version)
    # one that is heard and knows of no copy has lost its own, as a power cut takes what was just begun
    missing = [name for name in newest.members if name not in reports and name not in emptied]
    if missing and not force:
        return Wait(f"{_and(missing)}, which may have the newest copy of the namespace and cannot be heard; if lost "
                    f"for good, start the nameserver with {FORCE_FLAG}")
    copies: dict[str | None, Position] = {name: report.mirror for name, report in reports.items()
                                          if report.mirror is not None and report.mirror.namespace == namespace}
    if own.mirror is not None:
        copies[None] = own.mirror
    if not copies:
        damaged = "".join(f"; {name}: {report.damage}" for name, report in reports.items() if report.damage)
        return Wait(f"a complete copy of the namespace: none of the {len(reports)} dataservers that report has one"
                    f"{damaged}")
    source = max(copies, key=lambda name: (copies[name].timeline, copies[name].sequence, name is None, name or ""))
    return Take(source, copies[source], newest)


def next_timeline(seen: Iterable[int], salt: int) -> int:
    """A number for a new timeline: greater than all `seen`, and not one that a nameserver chooses that has seen
    others. `salt` is drawn at random, 16 bits."""
    return (max((number >> 16 for number in seen), default=0) + 1 << 16) | salt & 0xFFFF


def _names(reports: Mapping[str, Report]) -> str:
    by_namespace: dict[bytes, list[str]] = {}
    for name, report in reports.items():
        by_namespace.setdefault(report.holders.namespace, []).append(name)
    return ", ".join(f"{namespace.hex()[:8] or 'none'}: {_and(names)}" for namespace, names in by_namespace.items())


def _and(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
