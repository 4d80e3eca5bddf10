"""The tables that systems own, and the step in which the entries of each table are changed.

A system adds a table of its own by a declaration in its own room: an `OwnedTable`, handed to `Forwarding.own_table`
with a function that says which entries each switch shall have there. The reference is
docs/reference/switch-tables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from speedwell.controller.errors import TableTaken
from speedwell.controller.switches.entries import COOKIE_MASK, FlowEntry
from speedwell.controller.switches.layout import (
    FIRST_OWNED_COOKIE,
    FIRST_OWNED_TABLE,
    LAST_OWNED_COOKIE,
    LAST_OWNED_TABLE,
    PLANNED_COOKIES,
    Priority,
    Table,
)


class Step(IntEnum):
    """The steps of a change, in order: all switches take one before any takes the next."""

    REACHED = 1
    """Entries that packets on their way meet after the first switch."""
    SENDING = 2
    """Groups, entries that send packets on their way, and answers to ARP."""
    ADMITTING = 3
    """Entries that tell known senders. What is no longer wanted goes after this step."""


_STEPS = {Table.ROUTES: Step.SENDING, Table.NEIGHBOURS: Step.SENDING, Table.SOURCES: Step.ADMITTING}


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """The declaration of a table that one system owns.

    IPv4 packets of hosts cross it after `SOURCES` and before `ROUTES`; what it does not match goes on by itself, and
    its entries may send to any higher table. `number` is from 21 to 39, `cookie` from 0x5720 to 0x57ff in the upper
    16 bits; all its entries carry both.
    """

    name: str
    number: int
    cookie: int
    step: Step = Step.SENDING
    step_of: Callable[[FlowEntry], Step] | None = None
    """The step of each entry in the table, where not all have the same."""
    beside: frozenset[int] = frozenset()
    """Tables of `Table` in which the system has entries too, for what its own table cannot see."""


EntriesOf = Callable[[str], Iterable[FlowEntry] | None]
"""Which entries a switch (datapath id) shall have; None: not known yet, what it holds from before stays."""


class TableRegistry:
    """The tables that systems own beside those of `Table`."""

    def __init__(self) -> None:
        self._owned: dict[int, tuple[OwnedTable, EntriesOf]] = {}

    def declare(self, table: OwnedTable, entries_of: EntriesOf) -> None:
        """Add a table. Raises TableTaken if its number or cookie is another's or not for systems to take."""
        if not FIRST_OWNED_TABLE <= table.number <= LAST_OWNED_TABLE:
            raise TableTaken(f"table {table.number} ({table.name}) is not from {FIRST_OWNED_TABLE} "
                             f"to {LAST_OWNED_TABLE}")
        if table.cookie & ~COOKIE_MASK or not FIRST_OWNED_COOKIE <= table.cookie <= LAST_OWNED_COOKIE:
            raise TableTaken(f"the cookie {table.cookie:#x} of table {table.name} is not one that a system may take")
        for other, _ in self._owned.values():
            if table.number == other.number or table.cookie == other.cookie:
                raise TableTaken(f"number or cookie of table {table.name} is that of {other.name}")
        self._owned[table.number] = table, entries_of

    def name(self, number: int) -> str | None:
        """What the table with this number is called, if a system owns it."""
        return self._owned[number][0].name if number in self._owned else None

    def owner(self, cookie: int) -> str | None:
        """The name of the table whose entries carry this cookie."""
        return next((table.name for table, _ in self._owned.values() if table.cookie == cookie), None)

    def after(self, table: int) -> int:
        """The table to which packets go that `SOURCES`, or a table of a system, does not keep."""
        return min((number for number in self._owned if number > table), default=Table.ROUTES)

    def step_of(self, entry: FlowEntry) -> Step:
        """The step in which an entry is added."""
        if entry.table in self._owned:
            table = self._owned[entry.table][0]
            return table.step if table.step_of is None else table.step_of(entry)
        return _STEPS.get(entry.table, Step.REACHED)  # type: ignore[call-overload,no-any-return]

    def owned_entries(self, dpid: str, found: Iterable[FlowEntry] = ()) -> Iterable[FlowEntry]:
        """What a switch shall hold for systems, the misses of their tables included; `found` is what it holds from
        before. Raises TableTaken for an entry that is not in one of its owner's tables, or does not carry its
        cookie."""
        for number, (table, entries_of) in self._owned.items():
            yield FlowEntry(number, Priority.MISS, (), goto=self.after(number), cookie=table.cookie)
            entries = entries_of(dpid)
            if entries is None:
                entries = [entry for entry in found if entry.cookie & COOKIE_MASK == table.cookie]
            for entry in entries:
                if entry.table not in {number, *table.beside} or entry.cookie & COOKIE_MASK != table.cookie:
                    raise TableTaken(f"an entry of {table.name} is not in its table, or has another cookie: {entry}")
                yield entry


def is_planned(cookie: int) -> bool:
    """Whether an entry with this cookie is one that the plan, or a system's table, is to have."""
    prefix = cookie & COOKIE_MASK
    return prefix in PLANNED_COOKIES or FIRST_OWNED_COOKIE <= prefix <= LAST_OWNED_COOKIE
