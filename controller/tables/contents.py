"""What a switch holds, entry by entry, and whose each entry is. No Ryu, no sockets."""

from __future__ import annotations

from typing import Any

from speedwell.controller.switches.entries import (
    COOKIE_MASK,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    Action,
    CopyField,
    ForgetPort,
    LoadLabel,
    Match,
    Output,
    PopLabel,
    PushLabel,
    PushLoaded,
    SetField,
    SetQueue,
    ToGroup,
)
from speedwell.controller.switches.layout import EXPLICIT_COOKIES, PLANNED_COOKIES, Table
from speedwell.controller.tables.flow_records import FlowRecords
from speedwell.controller.tables.registry import TableRegistry

RESERVED_PORTS = {PORT_IN_PORT: "in_port", PORT_CONTROLLER: "controller"}
BASE = "base"
FORMER = "former"
STRANGERS = "strangers"


def owner_of(cookie: int, dpid: str, records: FlowRecords, registry: TableRegistry) -> str:
    """Whose an entry of a switch is, by its cookie (docs/reference/switch-tables.md).

    `base`: the tables that every switch has; the system whose claim on the flow comes first (`reads`, `coflows`); the
    name of a table that a system owns; `former`: a single flow that has no record, left by an earlier life of the
    controller or just ending; `strangers`: none of the controller's.
    """
    prefix = cookie & COOKIE_MASK
    if prefix in PLANNED_COOKIES:
        return BASE
    if prefix in EXPLICIT_COOKIES:
        record = records.with_cookie(cookie, dpid)
        return record.ranked[0].claimant.name if record is not None and record.claims else FORMER
    return registry.owner(prefix) or STRANGERS


def table_name(number: int, registry: TableRegistry) -> str | None:
    """What a table is called, if the controller uses it."""
    return Table(number).name if number in Table._value2member_map_ else registry.name(number)


def match_fields(match: Match) -> dict[str, str]:
    """A match for people: a masked field as `value/mask`."""
    return {name: "/".join(map(_value, value)) if isinstance(value, tuple) else _value(value)
            for name, value in match}


def _value(value: Any) -> str:
    return f"{value:#06x}" if isinstance(value, int) and value >= 0x600 else str(value)


def action_text(action: Action | str) -> str:
    """An action for people; one that the controller never uses as Ryu has it."""
    match action:
        case Output(port_no):
            return f"output {RESERVED_PORTS.get(port_no, port_no)}"
        case ToGroup(group_id):
            return f"group {group_id:#x}"
        case PushLabel(label):
            return f"push label {label}"
        case PushLoaded(choice, bits):
            return f"push loaded label, lowest {bits} bits {choice}"
        case LoadLabel(label, traffic_class):
            return f"load label {label}" + ("" if traffic_class is None else f" class {traffic_class}")
        case PopLabel(ethertype):
            return f"pop label to {ethertype:#06x}"
        case SetQueue(queue):
            return f"set queue {queue}"
        case ForgetPort():
            return "forget the port"
        case SetField(field, value):
            return f"set {field} {value}"
        case CopyField(source, destination, _):
            return f"copy {source} to {destination}"
        case _:
            return str(action)
