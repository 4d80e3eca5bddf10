"""What `/v1/network`, `/v1/switches`, `/v1/links`, `/v1/hosts` and `/v1/health` give."""

from typing import Literal

from pydantic import Field

from speedwell.controller.rest.fields import Dpid, Ipv4, Node, NodeName, OutputModel


class SwitchPort(OutputModel):
    port: int = Field(description="OpenFlow port number.")
    name: str
    mac: str
    up: bool
    kind: Literal["undetermined", "edge", "fabric"] = Field(
        description="Whether hosts (edge) or another switch (fabric) may be behind it: as probes showed, or as the "
                    "setting host_ports says.")
    capacity_bps: float | None = Field(description="null if the switch does not say.")
    neighbour: Node | None = Field(description="What is at the other end, as far as is known.")
    neighbour_name: NodeName | None


class Switch(OutputModel):
    dpid: Dpid
    name: str
    address: str | None = Field(description="Where its OpenFlow connection comes from.")
    connected: bool
    edge: bool = Field(description="Whether it has a port that is up and leads to hosts.")
    ports: list[SwitchPort]


class SwitchList(OutputModel):
    switches: list[Switch]


class Link(OutputModel):
    """One direction of a link."""

    source: Node
    source_name: NodeName
    source_port: int | None = Field(description="null at a host.")
    destination: Node
    destination_name: NodeName
    destination_port: int | None = Field(description="null at a host.")
    capacity_bps: float
    rate_bps: float | None = Field(description="Measured rate in bits/s; null before two polls.")
    utilisation: float | None = Field(description="Measured rate over capacity; null before two polls.")


class LinkList(OutputModel):
    links: list[Link]


class Host(OutputModel):
    ip: Ipv4
    name: NodeName
    mac: str
    dpid: Dpid
    switch_name: NodeName
    port: int = Field(description="OpenFlow port number at the switch.")


class HostList(OutputModel):
    hosts: list[Host]


class Network(OutputModel):
    """The network as decisions see it: what is connected and up now."""

    switches: list[Switch]
    hosts: list[Host]
    links: list[Link]


class Policies(OutputModel):
    replica_policy: str
    path_policy: str
    placement_policy: str


class Trouble(OutputModel):
    name: str = Field(description="The loop or task of the controller, or the part of a switch, that is in trouble.")
    problem: str
    age_seconds: float = Field(description="Since it failed, since it last came round, or since it is so.")


class Health(OutputModel):
    status: Literal["ok", "converging", "degraded", "empty", "standby"] = Field(
        description="standby: another controller leads; degraded: a known switch is away, polls are late or "
                    "something is in trouble; empty: no switch is connected; converging: the switches have not "
                    "confirmed all entries yet.")
    leader: str = Field(description="At a standby, where the controller is that leads; empty if none is known.")
    converged: bool = Field(description="Whether the switches have confirmed all entries, whatever the status is.")
    switches_connected: int
    switches_known: int
    links: int = Field(description="Directed links between switches.")
    hosts: int
    reads: int
    last_poll_age_seconds: float | None = Field(description="Since every switch had answered a poll.")
    uptime_seconds: float
    troubles: list[Trouble] = Field(description="What failed within the last minute, or does not come round.")
    version: str
    policies: Policies


class RyuPort(OutputModel):
    dpid: Dpid
    port_no: str = Field(pattern="^[0-9a-f]{8}$")
    hw_addr: str
    name: str


class RyuSwitch(OutputModel):
    dpid: Dpid
    ports: list[RyuPort]


class RyuLink(OutputModel):
    src: RyuPort
    dst: RyuPort


class RyuHost(OutputModel):
    mac: str
    ipv4: list[str]
    ipv6: list[str]
    port: RyuPort
