"""What `/v1/reads` and `/v1/flows` take and give."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from speedwell.controller.policy.reads.selection import MAYFLOWER, PLUS
from speedwell.controller.rest.fields import InputModel, Ipv4, Node, NodeName, OutputModel, Port
from speedwell.controller.rest.pages import Page
from speedwell.controller.settings import PathPolicy, ReplicaPolicy

PLUS_CHOOSES_PATHS = "mayflower-plus chooses paths itself: path_policy is mayflower, or left out"
TWICE = "The same entry is given twice"
MAX_READ_BYTES = 1 << 50
MAX_REPLICAS = 64
MAX_CLIENT_PORTS = 64


class ReplicaAddress(InputModel):
    """Where a replica is served: a host of the fabric and the TCP port of its dataserver."""

    host: Ipv4
    port: Port


def _distinct_ports(ports: list[int]) -> list[int]:
    if len(set(ports)) < len(ports):
        raise ValueError(TWICE)
    return ports


def _distinct_replicas(replicas: list[ReplicaAddress]) -> list[ReplicaAddress]:
    if len({(replica.host, replica.port) for replica in replicas}) < len(replicas):
        raise ValueError(TWICE)
    return replicas


class ReadBody(InputModel):
    """A read that is about to start: who reads how much, from which of these replicas."""

    client: Ipv4
    client_ports: Annotated[
        list[Port], AfterValidator(_distinct_ports),
        Field(min_length=1, max_length=MAX_CLIENT_PORTS, json_schema_extra={"uniqueItems": True},
              description="Local ports that the client has bound: one for each part it is ready to take.")]
    replicas: Annotated[
        list[ReplicaAddress], AfterValidator(_distinct_replicas),
        Field(min_length=1, max_length=MAX_REPLICAS, json_schema_extra={"uniqueItems": True})]
    most_parts: int | None = Field(default=None, ge=1, le=MAX_CLIENT_PORTS,
                                   description="How many parts the read may have; null: one for each port.")
    size_bytes: int = Field(ge=1, le=MAX_READ_BYTES)
    file_id: str | None = Field(default=None, min_length=1, max_length=255,
                                description="Shown again by GET; decides nothing.")
    replica_policy: ReplicaPolicy | None = Field(default=None, description="null: as the controller is set.")
    path_policy: PathPolicy | None = Field(default=None, description="null: as the controller is set.")
    follows: bool = Field(default=False, description="Whether the client asks for news of the read, so that under "
                          "mayflower-plus it may wait or get further parts. It should then have a port for each "
                          "replica.")

    @model_validator(mode="after")
    def _policies_go_together(self) -> Self:
        if self.replica_policy == PLUS and self.path_policy not in (None, MAYFLOWER):
            raise ValueError(PLUS_CHOOSES_PATHS)
        return self


class PlacedReplica(OutputModel):
    """The replica that a part comes from."""

    host: Ipv4
    host_name: NodeName
    port: Port


class ConsideredReplica(OutputModel):
    """A replica that was weighed when a part was placed."""

    host: Ipv4
    host_name: NodeName
    cost_seconds: float | None = Field(
        description="Mayflower's cost of its cheapest path; a bound from below where that alone was more than the "
        "chosen one's cost. Under mayflower-plus, how long all of the read would take with what its freest path had "
        "to spare; null if that was nothing.")


class PlacedPart(OutputModel):
    """One stream of a read: TCP from `replica` to the client's `client_port`. Sizes are such that all should end
    together; offsets of parts that came later are 0, as the client knows what it has left."""

    number: int = Field(ge=0, description="What the part is called, among those of its read.")
    replica: PlacedReplica
    client_port: Port
    offset_bytes: int = Field(ge=0, description="Where the part starts, from the start of the read.")
    size_bytes: int = Field(ge=0)
    path: list[Node] = Field(description="From the replica's host to the client; empty if they are one host.")
    path_names: list[NodeName]
    estimated_bps: float | None = Field(description="Estimated share in bits/s; null on one host.")
    cost_seconds: float | None = Field(
        description="Mayflower's cost of the choice (paper, Eq. 2); null on one host or if no cost was needed.")


class PlacedRead(OutputModel):
    """What was decided for a read; the switches have confirmed it."""

    id: str
    parts: list[PlacedPart] = Field(description="None if the read is to wait for news.")
    revision: int | None = Field(description="0 if there may be news of the read; null if there will be none.")
    replica_policy: ReplicaPolicy
    path_policy: PathPolicy


class ReadPartState(PlacedPart):
    """A part and how far it is."""

    transferred_bytes: int = Field(ge=0, description="Counted by the first switch, without headers.")
    remaining_bytes: int = Field(ge=0)
    measured_bps: float | None = Field(description="Measured rate in bits/s; null before two polls.")
    share_bps: float | None = Field(description="The bandwidth the policy counts with; null on one host.")
    frozen: bool = Field(description="Whether the share is an estimate that measurements do not change yet.")
    reroutes: int = Field(ge=0, description="How often the path was changed under way.")
    ended: bool = Field(description="Whether it is over, while other parts of the read are not.")
    considered: list[ConsideredReplica] = Field(
        description="The replicas that were weighed when it was placed; under mayflower-plus, those that had no "
        "part of the read yet.")


class ReadState(OutputModel):
    """A read that has not ended."""

    id: str
    client: Ipv4
    client_name: NodeName
    size_bytes: int
    file_id: str | None
    placement_id: str | None = Field(description="Of /v1/placements: these bytes are written to `client`, as that "
                                     "placement expected; null for a read.")
    replica_policy: ReplicaPolicy
    path_policy: PathPolicy
    age_seconds: float = Field(ge=0)
    revision: int | None = Field(description="How often it was started or divided anew; null if it never will be.")
    parts: list[ReadPartState] = Field(description="In the order in which they were opened.")


class ReadList(Page):
    reads: list[ReadState]


class PlacedFlow(OutputModel):
    """A flow that the controller placed, as the switches count it."""

    id: str = Field(description="The cookie of its entry, 16 hex digits.")
    read_id: str
    source: Ipv4
    source_name: NodeName
    source_port: Port
    destination: Ipv4
    destination_name: NodeName
    destination_port: Port
    protocol: Literal["tcp"]
    path: list[Node]
    path_names: list[NodeName]
    size_bytes: int
    transferred_bytes: int
    rate_bps: float | None = Field(description="Measured rate in bits/s; null before two polls.")
    share_bps: float | None = Field(description="The bandwidth the policy counts with.")
    frozen: bool


class PlacedFlowList(Page):
    flows: list[PlacedFlow]
