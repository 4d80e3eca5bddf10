"""What `/v1/entries` and `/v1/switches/{dpid}/entries` give."""

from typing import Annotated

from pydantic import Field

from speedwell.controller.rest.fields import Dpid, NodeName, OutputModel
from speedwell.controller.rest.pages import Page

Owner = Annotated[str, Field(min_length=1, max_length=64, description=(
    "base: the tables that every switch has; reads, coflows: single flows; the name of a table that a system owns; "
    "former: a single flow without a record; strangers: not the controller's."))]
Counts = Annotated[dict[str, int], Field(description="Entries by owner.")]


class SwitchEntryCounts(OutputModel):
    """How many flow entries a switch holds. It was asked just now."""

    dpid: Dpid
    switch_name: NodeName
    entries: Counts
    total: int
    problem: str | None = Field(description="Why it did not tell; null if it did.")


class EntryCounts(OutputModel):
    switches: list[SwitchEntryCounts]
    entries: Counts
    total: int


class Entry(OutputModel):
    """A flow entry as its switch holds and counts it."""

    owner: Owner
    table: int
    table_name: str | None = Field(description="null for one that the controller does not use.")
    priority: int
    match: dict[str, str] = Field(description="OpenFlow fields; a masked one as value/mask.")
    actions: list[str]
    goto_table: int | None
    meter: int | None
    cookie: str = Field(pattern="^[0-9a-f]{16}$")
    packets: int
    bytes: int
    age_seconds: float
    idle_timeout_seconds: int
    hard_timeout_seconds: int


class SwitchEntries(Page):
    """Those of the owner that was asked for, if one was."""

    dpid: Dpid
    switch_name: NodeName
    entries: list[Entry] = Field(description="By table, highest priority first.")
