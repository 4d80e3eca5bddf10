"""What the policies refuse, each with one message that says what to change."""

from ipaddress import IPv4Address


class PolicyError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidNetwork(PolicyError):
    """A node or link that the network graph cannot hold."""


class UnknownNode(PolicyError):
    """A node that the network does not have."""

    def __init__(self, node: str) -> None:
        super().__init__(f"the network has no node {node!r}")
        self.node = node


class UnknownLink(PolicyError):
    """A link that the network does not have (or no longer has)."""

    def __init__(self, source: str, destination: str) -> None:
        super().__init__(f"the network has no link from {source!r} to {destination!r}")
        self.link = (source, destination)


class NoPath(PolicyError):
    """No replica of a request can be reached from its client."""


class InvalidRequest(PolicyError):
    """A request that no policy can answer, whatever the network looks like."""


class UnknownPolicy(PolicyError):
    """A policy name that is not offered."""


class InvalidPolicy(PolicyError):
    """A policy of a user's that cannot be offered: the message names its file."""


class DuplicateFlow(PolicyError):
    """A flow identifier that is already in use."""


class UnknownFlow(PolicyError):
    """A flow that is not live: never announced, or ended."""

    def __init__(self, flow_id: object) -> None:
        super().__init__(f"no flow {flow_id!r} is live")
        self.flow_id = flow_id


class UnknownCoflow(PolicyError):
    """A coflow that is not live: never announced, or ended."""

    def __init__(self, coflow_id: object) -> None:
        super().__init__(f"no coflow {coflow_id!r} is live")
        self.coflow_id = coflow_id


class InvalidMeasurement(PolicyError):
    """A measured rate that no link can have."""


class UnknownPath(PolicyError):
    """A path that has been given no label."""


class LabelsExhausted(PolicyError):
    """More distinct paths than MPLS has labels."""


class ImpossiblePlacement(PolicyError):
    """A placement whose constraints no choice of candidates fulfils. `constraint` is the first that fails."""

    def __init__(self, constraint: str, wanted: int, there: int, what: str | None = None) -> None:
        """`what` of which so many different ones are wanted, where the constraint's name does not say it."""
        super().__init__(f"{wanted} different {what or constraint} are wanted; the candidates that are attached to "
                         f"the network offer {there}")
        self.constraint, self.wanted, self.there = constraint, wanted, there


class InvalidArrays(PolicyError):
    """Arrays that do not fit each other: compiled code must not see them."""


class MetadataError(PolicyError):
    """Metadata servers cannot be placed or reached as asked; nothing was changed."""


class NoSuchKeyOwner(MetadataError):
    """Tables or blocks that lead an address nowhere."""

    def __init__(self, address: int) -> None:
        super().__init__(f"{IPv4Address(address)} leads to no metadata server")
        self.address = address


class TableFull(MetadataError):
    """A switch's table would have more entries than the switch holds."""

    def __init__(self, switch: str, entries: int, limit: int) -> None:
        super().__init__(f"switch {switch}: {entries} entries are needed, it holds {limit}")
        self.switch, self.entries, self.limit = switch, entries, limit


class UnknownServer(MetadataError):
    """A metadata server or switch that there is not, or that is there already."""


class NoIdleServer(MetadataError):
    """All metadata servers are busy: more have to be added."""


class InvalidCounts(MetadataError):
    """Numbers of keys that no server can hold, or that do not add up."""
