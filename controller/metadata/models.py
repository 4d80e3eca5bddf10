"""What `/v1/metadata` takes and gives."""

from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from speedwell.controller.metadata.owners import BLOCKS
from speedwell.controller.policy.metadata.blocks import SPACE
from speedwell.controller.policy.metadata.layout import MOST_SERVERS
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.controller.rest.fields import Dpid, InputModel, Ipv4, NodeName, OutputModel, Port

MOST_BLOCKS = 4096


def _block(text: str) -> str:
    network = IPv4Network(text)
    space = IPv4Network((SPACE[0], SPACE[1]))
    if not network.subnet_of(space):
        raise ValueError(f"{text} is not within {space}")
    return str(network)


Cidr = Annotated[str, AfterValidator(_block), Field(description="Addresses of keys, such as 100.64.0.0/12.")]
Cidrs = Annotated[list[Cidr], Field(max_length=MOST_BLOCKS)]


class Fetching(InputModel):
    """A block of which its former owner has records that are still to be fetched."""

    block: Cidr
    host: Ipv4


def _address(ip: str) -> str:
    _block(f"{ip}/32")
    return ip


KeyAddress = Annotated[Ipv4, AfterValidator(_address), Field(description="Of a key, within 100.64.0.0/10.")]
MOST_HOT = 512
Rate = Annotated[float, Field(ge=0, le=1e9, description="Reads a second.")]


class Announcement(InputModel):
    """A metadata server says what it is about. It does so again and again."""

    host: Ipv4
    port: Port
    id: str = Field(min_length=1, max_length=64, description="Of the process: another one at the same host is "
                    "refused while this one is alive.")
    owned: Cidrs = Field(default=[], description="Blocks whose records it has: also those of before its restart.")
    ready: Cidrs = Field(default=[], description="Blocks of `incoming` for which it has routes.")
    fetching: list[Fetching] = Field(default=[], max_length=MOST_BLOCKS)
    members: list[Ipv4] = Field(default=[], max_length=MOST_SERVERS, description="Of the last orders, for a "
                                "controller that has just started: it gives nobody the keys of missing servers.")
    reads: Rate = 0.0
    hottest: dict[KeyAddress, Rate] = Field(default={}, max_length=MOST_HOT, description="Reads a second of the "
                                            "addresses that are read most.")
    answers_for: list[KeyAddress] = Field(default=[], max_length=MOST_HOT, description="Addresses of `replicas` "
                                          "that it has routes to.")


class Incoming(OutputModel):
    block: str
    host: Ipv4 | None = Field(description="Who owned it before; null: nobody has records of it.")
    port: Port | None
    take: bool = Field(description="All tables lead here: take it from the former owner. Before, forward.")


class Leaving(OutputModel):
    block: str
    host: Ipv4 = Field(description="Who may take it.")


class Replica(OutputModel):
    address: Ipv4 = Field(description="Of a key that is read very often.")
    host: Ipv4 = Field(description="Who owns it: ask for copies there.")


class Orders(OutputModel):
    """What an announced server is to do."""

    may_own: list[str] | None = Field(description="It gives up what it owns beside these; null: not known yet, "
                                      "because the controller has just started.")
    incoming: list[Incoming]
    leaving: list[Leaving]
    members: list[str] = Field(description="The servers that may have records. It remembers them.")
    replicas: list[Replica] = Field(description="Addresses to answer beside their owners.")
    spread: list[Ipv4] = Field(description="Own addresses that replicas answer too: reads that come another way are "
                               "refused, so that they come by these.")
    again_seconds: float = Field(description="When it is to announce itself again.")


class MetadataServer(OutputModel):
    host: Ipv4
    host_name: NodeName
    port: Port
    blocks: list[str] = Field(description="Those whose requests are sent to it.")
    share: float = Field(description="Of all keys.")
    silent_seconds: float
    state: Literal["idle", "busy", "silent", "leaving"]


class HotKey(OutputModel):
    address: Ipv4
    reads: float = Field(description="Reads a second, at all servers.")
    replicas: list[Ipv4] = Field(description="Those that switches send requests to.")


class MetadataServers(OutputModel):
    servers: list[MetadataServer]
    is_settled: bool = Field(description="false: the controller has just started, and servers tell what they own.")
    awaited: list[str] = Field(description="Servers that had keys before the controller started, and were not heard "
                               "since.")
    busiest_over_mean: float | None
    hot_keys: list[HotKey] = Field(description="Keys that replicas answer beside their owners.")


class MetadataBlock(OutputModel):
    block: str
    host: Ipv4 | None = Field(description="null: nobody owns it, and its requests are not answered.")
    host_name: NodeName | None
    moving_to: Ipv4 | None
    phase: str | None


class MetadataBlocks(OutputModel):
    blocks: list[MetadataBlock] = Field(description="In the order of their addresses; together they are all of them.")


Block = Annotated[int, Field(ge=0, lt=BLOCKS)]


class OwnerAnnouncement(InputModel):
    """A nameserver says which blocks of the namespace it owns."""

    host: Ipv4
    epoch: int = Field(ge=0, lt=1 << 63, description="The revision of etcd's map of owners by which it owns them.")
    owned: list[Block] = Field(max_length=BLOCKS)
    left: list[Block] = Field(default=[], max_length=BLOCKS, description="Blocks that it had until lately: it may "
                              "still answer from their addresses.")


class OwnerOfBlock(OutputModel):
    block: int
    addresses: str = Field(description="Those that requests for it are sent to.")
    host: Ipv4
    host_name: NodeName


class Owners(OutputModel):
    owners: list[OwnerOfBlock]


class MetadataTables(OutputModel):
    """The entries that metadata servers cost a switch."""

    dpid: Dpid
    switch_name: NodeName
    servers: int = Field(description="Prefixes by server, for what arrives at this switch.")
    racks: int = Field(description="Prefixes by rack, at an aggregation switch.")
    pods: int = Field(description="Prefixes by pod or own rack, at a client's switch.")
    sources: int = Field(description="Blocks from whose addresses servers at this switch may answer, and what "
                         "refuses others.")
    hot: int = Field(description="Exact entries of keys that are read very often.")
    fixed: int = Field(description="Others, whose number does not depend on keys.")
    total: int
    paper: int = Field(description="What MetaFlow's B-tree would have here, for as many servers with evenly spread "
                       "keys.")
    limit: int


def prefix_of(text: str) -> Prefix:
    network = IPv4Network(text)
    return int(network.network_address), network.prefixlen


def text_of(prefix: Prefix) -> str:
    return f"{IPv4Address(prefix[0])}/{prefix[1]}"
