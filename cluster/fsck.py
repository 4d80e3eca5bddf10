"""Comparing what the nameserver thinks lies on the dataservers with what does."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from speedwell.cluster.errors import CannotTell
from speedwell.fs import paths, units
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import NoSuchFile, NotADirectory
from speedwell.fs.nameserver.service.request_fields import file_id_text
from speedwell.fs.proto.speedwell_pb2 import (
    DIRECTORY,
    OK,
    ContentEntry,
    DataReply,
    DataRequest,
    FileReport,
    Finding,
    InventoryOperation,
    LostTail,
    Replica,
    VerifyOperation,
)
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame
from speedwell.fs.wire.identification import connect_identified

PAGE = 1000
VERIFY_TIMEOUT_SECONDS = 300.0
"""For one answer: the largest file of a dataserver is read in that time."""

KINDS = ("missing", "unreachable", "under-replicated", "diverged", "lost-replica", "short-replica", "lost-tail",
         "corrupt", "orphaned")

Inventory = Mapping[str, FileReport]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `kind` is missing (all its dataservers were asked, and none holds the content),
    unreachable (none that was asked holds it, and others could not be asked), under-replicated (fewer good
    replicas than wanted), diverged (undamaged by its own sums, but they are not those of the other replicas),
    lost-replica (a dataserver of the set does not hold it), short-replica (it has less than the file), lost-tail (no
    dataserver has the end of the file: `left` bytes are there, on `holders`), corrupt (bytes there differ from their
    sums, or it cannot be read), orphaned (a dataserver holds a content of no file, or is not in the set)."""

    kind: str
    inode: int
    file_id: str
    detail: str
    dataserver_id: str = ""
    unreadable: bool = False
    left: int | None = None
    holders: tuple[str, ...] = ()
    path: str = ""
    """One of the file's names; empty if it has none any more (it is open, or in the trash)."""
    unseen: bool = False
    """Nothing is known to be wrong: this machine does not reach dataservers that may have it."""


@dataclass
class Check:
    """The result: what was looked at, and what is wrong."""

    files: int = 0
    replicas: int = 0
    unreachable: list[str] = field(default_factory=list)
    """Dataservers from which the nameserver hears, and this machine does not."""
    away: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What an operator has to decide: dataservers of another namespace, a namespace that is an old copy."""
    awaited_inventories: list[str] = field(default_factory=list)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    waiting: int = 0
    """Replicas that are being made, or that wait for their deletion: normal after a drain, a move, a removal."""

    @property
    def clean(self) -> bool:
        return not self.problems and not self.unreachable and not self.away and not self.warnings

    @property
    def counts(self) -> dict[str, int]:
        """How many problems there are of each kind, all kinds named."""
        return dict.fromkeys(KINDS, 0) | Counter(problem.kind for problem in self.problems)

    def document(self) -> dict[str, Any]:
        return {"clean": self.clean, "counts": self.counts, "waiting": self.waiting, "files": self.files,
                "replicas": self.replicas, "unreachable": self.unreachable, "away": self.away,
                "warnings": self.warnings, "awaited_inventories": self.awaited_inventories,
                "quarantined": self.quarantined,
                "problems": [asdict(problem) for problem in self.problems]}

    def of_kind(self, *kinds: str) -> list[Finding]:
        return [Finding(inode=problem.inode, file_id=problem.file_id, dataserver_id=problem.dataserver_id)
                for problem in self.problems if problem.kind in kinds]


def check(metadata: MetadataClient, progress: Callable[[int], None] = lambda count: None, *,
          verify: bool = False, digests: bool = False) -> Check:
    """Look at every file and every dataserver; with `verify` all bytes there are compared with their sums, otherwise
    only what dataservers have found damaged so far is told. With `verify` or `digests` the sums of a file's replicas
    are compared with each other. Raises NameserverUnavailable.

    The inventories are taken before the files are listed, and what looks wrong then is looked at again: files
    change meanwhile.
    """
    found = _check_once(metadata, progress, VerifyOperation() if verify else None, verify or digests)
    if not found.problems:
        return found
    corrupt = [problem.file_id for problem in found.problems if problem.kind == "corrupt"]
    again = _check_once(metadata, lambda count: None, VerifyOperation(file_ids=corrupt) if corrupt else None,
                        verify or digests)
    before = {(problem.kind, problem.file_id, problem.dataserver_id) for problem in found.problems}
    again.problems = [problem for problem in again.problems
                      if (problem.kind, problem.file_id, problem.dataserver_id) in before]
    names = names_of(metadata, {problem.inode for problem in again.problems})
    again.problems = [replace(problem, path=os.fsdecode(names.get(problem.inode, b""))) for problem in again.problems]
    return again


def names_of(metadata: MetadataClient, inodes: set[int]) -> dict[int, bytes]:
    """A path of each inode that has one, found by listing directories until all are."""
    found: dict[int, bytes] = {}
    directories = [paths.ROOT]
    while directories and inodes - found.keys():
        directory = directories.pop()
        with contextlib.suppress(NoSuchFile, NotADirectory):    # removed meanwhile
            for entry in metadata.list(directory):
                path = paths.join(directory, entry.name)
                if entry.attributes.inode in inodes:
                    found.setdefault(entry.attributes.inode, path)
                if entry.attributes.type == DIRECTORY:
                    directories.append(path)
    return found


def repair(metadata: MetadataClient, found: Check) -> None:
    """Have put right what a check found; it takes a while. A file whose end no dataserver has is cut to what is left.
    Damaged blocks are fetched from other replicas at once; a replica of which that cannot be done, as it cannot even
    be read, is made anew. Raises NameserverUnavailable, and CannotTell if dataservers could not be reached: then
    nothing is done."""
    if found.unreachable:
        raise CannotTell(f"nothing is repaired: {', '.join(found.unreachable)} cannot be reached from this machine, "
                         "so what lies there is not known")
    servers = {status.server.dataserver_id: status.server for status in metadata.statistics().dataservers}
    unreadable = []
    for problem in found.problems:
        server = servers.get(problem.dataserver_id)
        if problem.kind != "corrupt" or server is None or not server.alive:
            continue
        with contextlib.suppress(ConnectionLost, MalformedFrame):
            left = verified(server, VerifyOperation(file_ids=[problem.file_id], repair=True), metadata)
            if problem.file_id in left and problem.unreadable:
                unreadable.append(Finding(inode=problem.inode, file_id=problem.file_id,
                                          dataserver_id=problem.dataserver_id))
    outvoted = [finding for finding in found.of_kind("diverged") if finding.dataserver_id]
    lost_tails = [LostTail(inode=problem.inode, file_id=problem.file_id, size=problem.left,
                           dataserver_ids=problem.holders) for problem in found.problems if problem.left is not None]
    waiting = {tail.file_id for tail in lost_tails}   # what is short of what is left is seen with the next check
    bad = [finding for finding in found.of_kind("lost-replica", "short-replica") if finding.file_id not in waiting]
    metadata.operator.repair([*bad, *outvoted, *unreadable], found.of_kind("orphaned"), lost_tails=lost_tails)


def _check_once(metadata: MetadataClient, progress: Callable[[int], None], verify: VerifyOperation | None,
                digests: bool) -> Check:
    result = Check()
    inventories: dict[str, dict[str, FileReport]] = {}
    surplus = metadata.operator.surplus()
    statistics = metadata.statistics()
    result.warnings = list(statistics.warnings)
    result.awaited_inventories = list(statistics.awaited_inventories)
    for status in statistics.dataservers:
        name = status.server.dataserver_id
        try:
            inventories[name] = (inventory_of(status.server, metadata, digests) if status.server.alive
                                 else {})
            if status.server.alive:
                result.quarantined += [
                    {"dataserver_id": name, "file_id": report.file_id, "size": report.size,
                     "path": os.fsdecode(report.path), "seconds_left": report.seconds_left}
                    for report in inventory_of(status.server, metadata, quarantined=True).values()]
            if verify is not None and status.server.alive:
                _add_damage(inventories[name], verified(status.server, verify, metadata))
        except (ConnectionLost, MalformedFrame):
            inventories[name] = {}
            result.unreachable.append(name)
        if not status.server.alive and (status.replicas or not status.draining):
            result.away.append(name)
    entries = {}
    for entry in metadata.operator.contents():
        entries[file_id_text(entry.content.file_id)] = entry
        progress(1)
    surplus |= metadata.operator.surplus() | _left_behind(entries, inventories)
    result.waiting = len(surplus)
    result.problems = compare(entries.values(), inventories, set(result.unreachable), surplus,
                              away=set(result.away))
    result.files = len(entries)
    result.replicas = sum(len(inventory) for inventory in inventories.values())
    return result


def _left_behind(entries: Mapping[str, ContentEntry], inventories: Mapping[str, Inventory]) -> set[tuple[str, str]]:
    """(file id, dataserver id) of readable contents whose file goes on without that dataserver, as after a drain: the
    nameserver has them deleted."""
    return {(file_id, name) for name, inventory in inventories.items() for file_id, report in inventory.items()
            if (entry := entries.get(file_id)) is not None and name not in entry.dataserver_ids
            and report.inode and report.epoch <= entry.content.epoch}


def _add_damage(inventory: dict[str, FileReport], damage: Mapping[str, str]) -> None:
    for file_id, report in inventory.items():
        report.damage = damage.get(file_id, "" if report.inode else report.damage)


def verified(server: Replica, operation: VerifyOperation, metadata: MetadataClient) -> dict[str, str]:
    """What is wrong with the files that the dataserver compares with their sums. Raises ConnectionLost,
    MalformedFrame, NameserverUnavailable."""
    damage: dict[str, str] = {}
    token = metadata.operator.authorize()
    channel = connect_identified(server, metadata, VERIFY_TIMEOUT_SECONDS)
    try:
        while True:
            channel.send(DataRequest(verify=operation, token=token))
            reply = channel.expect(DataReply)
            if reply.status != OK:
                raise ConnectionLost(reply.message)
            damage.update((report.file_id, report.damage) for report in reply.contents)
            if not reply.after:
                return damage
            operation = VerifyOperation(after=reply.after, repair=operation.repair)
    finally:
        channel.close()


def live_servers(metadata: MetadataClient) -> list[Replica]:
    """The dataservers that can be asked."""
    return [status.server for status in metadata.statistics().dataservers if status.server.alive]


def inventory_of(server: Replica, metadata: MetadataClient, digests: bool = False, *,
                 quarantined: bool = False) -> dict[str, FileReport]:
    """All contents on a dataserver by file id, with digests of their sums if wanted, or all in quarantine there.
    Raises ConnectionLost, MalformedFrame, NameserverUnavailable."""
    contents: dict[str, FileReport] = {}
    token = metadata.operator.authorize()
    channel = connect_identified(server, metadata)
    try:
        after = ""
        while True:
            channel.send(DataRequest(inventory=InventoryOperation(
                after=after, limit=PAGE, digests=digests, quarantined=quarantined), token=token))
            reply = channel.expect(DataReply)
            if reply.status != OK:
                raise ConnectionLost(reply.message)
            contents.update((report.file_id, report) for report in reply.contents)
            if len(reply.contents) < PAGE:
                return contents
            after = reply.contents[-1].file_id
    finally:
        channel.close()


def compare(entries: Iterable[ContentEntry], inventories: Mapping[str, Inventory],
            unreachable: set[str], surplus: Container[tuple[str, str]] = (), *,
            away: Set[str] = frozenset()) -> list[Problem]:
    """What is wrong, given every content and what lies on each dataserver. A file without a byte needs no replica
    to hold anything; `surplus` has (file id, dataserver id) of contents that may lie about. Nothing is known of what
    lies on those `unreachable` or `away`; only the latter are counted as lost replicas."""
    problems: list[Problem] = []
    members: dict[str, set[str]] = {}
    for entry in entries:
        file_id = file_id_text(entry.content.file_id)
        members[file_id] = set(entry.dataserver_ids)
        problems += _check_content(entry, file_id, inventories, unreachable, away)
        problems += _check_digests(entry, file_id, inventories)
    for name, inventory in inventories.items():
        for file_id, report in inventory.items():
            if name not in members.get(file_id, set()) and (file_id, name) not in surplus:
                reason = "the dataserver is not in the file's set" if file_id in members else "no file has it"
                problems.append(Problem("orphaned", report.inode, file_id, f"{units.size(report.size)}: {reason}",
                                        name))
    return problems


def _check_digests(entry: ContentEntry, file_id: str, inventories: Mapping[str, Inventory]) -> list[Problem]:
    """Replicas of one length whose sums differ: those that most others contradict, or all if no side has most."""
    reports = {name: report for name in entry.dataserver_ids
               if (report := inventories.get(name, {}).get(file_id)) is not None and report.HasField("digest")}
    problems = []
    for size in {report.size for report in reports.values()}:
        digests = {name: report.digest for name, report in reports.items() if report.size == size}
        (common, votes), *others = Counter(digests.values()).most_common()
        if not others:
            continue
        if votes * 2 > len(digests):
            problems += [Problem("diverged", entry.inode, file_id,
                                 f"its sums differ from those of {votes} replicas", name)
                         for name, digest in digests.items() if digest != common]
        else:
            problems.append(Problem("diverged", entry.inode, file_id,
                                    f"{', '.join(digests)} have different bytes, each with sums that match its own"))
    return problems


def _check_content(entry: ContentEntry, file_id: str, inventories: Mapping[str, Inventory],
                   unreachable: set[str], away: Set[str]) -> list[Problem]:
    size, problems, good = entry.content.size, [], 0
    unknown = [name for name in entry.dataserver_ids if name in unreachable or name in away]
    for name in entry.dataserver_ids:
        if name in unknown:
            continue
        report = inventories.get(name, {}).get(file_id)
        if report is not None and report.damage:
            problems.append(Problem("corrupt", entry.inode, file_id, report.damage, name,
                                    unreadable=not report.inode))
        elif size and report is None:
            problems.append(Problem("lost-replica", entry.inode, file_id, "it is not there", name))
        elif report is not None and report.size < size:
            problems.append(Problem("short-replica", entry.inode, file_id,
                                    f"it lacks {units.size(size - report.size)} of {units.size(size)}", name))
        else:
            good += 1
    tail = _lost_tail(entry, file_id, inventories, set(unknown))
    if tail is not None:
        return [tail, *problems]
    wanted = entry.content.replication
    if not good and size and unknown:
        problems.append(Problem("unreachable", entry.inode, file_id,
                                f"its {units.size(size)} may be on {', '.join(unknown)}, which cannot be asked",
                                unseen=not unreachable.isdisjoint(unknown)))
    elif not good and size:
        problems.append(Problem("missing", entry.inode, file_id,
                                f"none of {', '.join(entry.dataserver_ids)} holds its {units.size(size)}"))
    elif good + len(unreachable.intersection(unknown)) < min(wanted, len(inventories)):
        problems.append(Problem("under-replicated", entry.inode, file_id, f"{good} of {wanted} replicas"))
    return problems


def _lost_tail(entry: ContentEntry, file_id: str, inventories: Mapping[str, Inventory],
               unreachable: set[str]) -> Problem | None:
    """If every dataserver that may have the content has been asked, and none has all of it."""
    lengths = {name: inventory[file_id].size for name, inventory in inventories.items() if file_id in inventory}
    members = set(entry.dataserver_ids)
    left = max(lengths.values(), default=0)
    if not 0 < left < entry.content.size or members & unreachable or any(
            inventories[name][file_id].damage for name in lengths):
        return None
    holders = tuple(name for name in entry.dataserver_ids if lengths.get(name) == left)
    size = entry.content.size
    lost = f"the last {units.size(size - left)} of {units.size(size)} are on no dataserver"
    if not holders:     # nobody in the set has as much as somebody outside
        return None
    return Problem("lost-tail", entry.inode, file_id, f"{lost}: they cannot be read; --repair cuts the file to the "
                   "others", left=left, holders=holders)
