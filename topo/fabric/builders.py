"""The three families of fabrics.

Over-subscription is given per tier, as the ratio of what can come up from below to what can go on up:

* edge: bits/s of a rack's hosts : bits/s of its edge switch's uplinks;
* aggregation: bits/s of an aggregation switch's downlinks : bits/s of its uplinks.

Their product is the core-to-rack ratio, the number that papers quote: with the defaults 2 and 4 the fabric is
8:1 over-subscribed as in Mayflower's evaluation (section 6), with the core the tightest tier.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from speedwell.topo.fabric import addresses
from speedwell.topo.fabric.errors import InvalidFabric
from speedwell.topo.fabric.model import Fabric, Host, Link, Switch, Tier

MAYFLOWER_OVERSUBSCRIPTION: Mapping[str, float] = MappingProxyType({"edge": 2.0, "aggregation": 4.0})
FULL_BISECTION: Mapping[str, float] = MappingProxyType({"edge": 1.0, "aggregation": 1.0})

_MAX_SWITCH_LINKS = 1_000_000
_DPID_OF_TIER: dict[Tier, int] = {"edge": 0x10000, "aggregation": 0x20000, "core": 0x30000}


def three_tier(pods: int = 2, racks_per_pod: int = 2, hosts_per_rack: int = 4, aggregations_per_pod: int = 2,
               cores: int = 2, host_bps: float = 80e6,
               oversubscription: Mapping[str, float] = MAYFLOWER_OVERSUBSCRIPTION) -> Fabric:
    """Pods of racks below a core: every edge switch links to all aggregation switches of its pod, each of
    those to all core switches.

    `host_bps` is the rate of a host's link in bits/s; the rates above follow from `oversubscription`, which
    needs the keys `edge` and `aggregation`. Mayflower's 64 hosts are 4 pods of 4 racks of 4 hosts.
    Raises `InvalidFabric`.
    """
    _check_count("aggregations_per_pod", aggregations_per_pod, addresses.MAX_SWITCHES)
    _check_count("cores", cores, addresses.MAX_SWITCHES)
    return _podded("three-tier", pods=pods, racks_per_pod=racks_per_pod, hosts_per_rack=hosts_per_rack,
                   cores=cores, host_bps=host_bps, oversubscription=oversubscription,
                   cores_of_aggregation=[range(cores)] * aggregations_per_pod)


def fat_tree(k: int = 4, host_bps: float = 80e6,
             oversubscription: Mapping[str, float] = FULL_BISECTION, pods: int | None = None) -> Fabric:
    """The k-ary fat-tree of Al-Fares et al. (SIGCOMM 2008, section 3): k pods of k/2 edge and k/2 aggregation
    switches, k/2 hosts under each edge switch, (k/2)**2 core switches.

    k must be even. With `pods` below k the fabric is incomplete: fewer pods, the same core. With the default
    `oversubscription` every link has the rate `host_bps` (bits/s).
    Raises `InvalidFabric`.
    """
    _check_count("k", k, addresses.MAX_PODS)
    if k % 2:
        raise InvalidFabric(f"k: a fat-tree needs an even number, not {k}")
    half = k // 2
    if pods is not None:
        _check_count("pods", pods, k)
    return _podded("fat-tree", pods=pods or k, racks_per_pod=half, hosts_per_rack=half, cores=half * half,
                   host_bps=host_bps, oversubscription=oversubscription,
                   cores_of_aggregation=[range(index * half, (index + 1) * half) for index in range(half)])


def spine_leaf(leaves: int = 4, spines: int = 2, hosts_per_leaf: int = 4, host_bps: float = 80e6,
               oversubscription: float = 2.0) -> Fabric:
    """Every leaf links to every spine; the whole fabric is one pod.

    `oversubscription` is bits/s of a leaf's hosts : bits/s of its uplinks. Raises `InvalidFabric`.
    """
    _check_count("leaves", leaves, addresses.MAX_SWITCHES)
    _check_count("spines", spines, addresses.MAX_SWITCHES)
    _check_count("hosts_per_leaf", hosts_per_leaf, addresses.MAX_HOSTS_PER_RACK)
    _check_total("hosts", leaves * hosts_per_leaf, addresses.MAX_HOSTS)
    _check_total("switches", leaves + spines, addresses.MAX_SWITCHES)
    _check_total("switch links", leaves * spines, _MAX_SWITCH_LINKS)
    rate_bps = _rate("host_bps", host_bps)
    uplink_bps = _uplink_rate("oversubscription", hosts_per_leaf * rate_bps, oversubscription, spines)

    parts = _Parts("spine-leaf")
    spine_names = [parts.add_switch(f"spine{index}", "core", None, None) for index in range(spines)]
    for leaf in range(leaves):
        block, rack_index = divmod(leaf, addresses.MAX_RACKS_PER_POD)
        name = parts.add_switch(f"leaf{leaf}", "edge", f"r{leaf}", "p0")
        for host in range(hosts_per_leaf):
            parts.add_host(f"r{leaf}h{host}", (block, rack_index, host), f"r{leaf}", "p0", name, rate_bps)
        parts.add_links(name, spine_names, uplink_bps)
    return parts.fabric()


def _podded(name: str, *, pods: int, racks_per_pod: int, hosts_per_rack: int, cores: int, host_bps: float,
            oversubscription: Mapping[str, float], cores_of_aggregation: Sequence[range]) -> Fabric:
    _check_count("pods", pods, addresses.MAX_PODS)
    _check_count("racks_per_pod", racks_per_pod, addresses.MAX_RACKS_PER_POD)
    _check_count("hosts_per_rack", hosts_per_rack, addresses.MAX_HOSTS_PER_RACK)
    aggregations = len(cores_of_aggregation)
    _check_total("hosts", pods * racks_per_pod * hosts_per_rack, addresses.MAX_HOSTS)
    _check_total("switches", pods * (racks_per_pod + aggregations) + cores, addresses.MAX_SWITCHES)
    core_links = pods * sum(len(group) for group in cores_of_aggregation)
    _check_total("switch links", pods * racks_per_pod * aggregations + core_links, _MAX_SWITCH_LINKS)
    if set(oversubscription) != {"edge", "aggregation"}:
        raise InvalidFabric("oversubscription: give a ratio for 'edge' and one for 'aggregation', "
                            f"not {sorted(oversubscription)}")
    rate_bps = _rate("host_bps", host_bps)
    edge_uplink_bps = _uplink_rate("oversubscription.edge", hosts_per_rack * rate_bps,
                                   oversubscription["edge"], aggregations)
    core_link_bps = _uplink_rate("oversubscription.aggregation", racks_per_pod * edge_uplink_bps,
                                 oversubscription["aggregation"], len(cores_of_aggregation[0]))

    parts = _Parts(name)
    core_names = [parts.add_switch(f"core{index}", "core", None, None) for index in range(cores)]
    for pod in range(pods):
        aggregation_names = [parts.add_switch(f"aggregation-p{pod}-{index}", "aggregation", None, f"p{pod}")
                             for index in range(aggregations)]
        for rack in range(racks_per_pod):
            rack_name = f"p{pod}r{rack}"
            edge = parts.add_switch(f"edge-{rack_name}", "edge", rack_name, f"p{pod}")
            for host in range(hosts_per_rack):
                parts.add_host(f"{rack_name}h{host}", (pod, rack, host), rack_name, f"p{pod}", edge, rate_bps)
            parts.add_links(edge, aggregation_names, edge_uplink_bps)
        for aggregation, group in zip(aggregation_names, cores_of_aggregation, strict=True):
            parts.add_links(aggregation, [core_names[index] for index in group], core_link_bps)
    return parts.fabric()


class _Parts:
    """Collects the nodes and links of a fabric and hands out their addresses."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hosts: list[Host] = []
        self._switches: list[Switch] = []
        self._links: list[Link] = []
        self._switches_of_tier: dict[Tier, int] = {"edge": 0, "aggregation": 0, "core": 0}

    def add_switch(self, name: str, tier: Tier, rack: str | None, pod: str | None) -> str:
        self._switches_of_tier[tier] += 1
        dpid = _DPID_OF_TIER[tier] + self._switches_of_tier[tier]
        management_ip = addresses.switch_management_address(len(self._switches))
        self._switches.append(Switch(name, dpid, tier, rack, pod, management_ip))
        return name

    def add_host(self, name: str, place: tuple[int, int, int], rack: str, pod: str, edge: str,
                 rate_bps: int) -> None:
        management_ip = addresses.host_management_address(len(self._hosts))
        self._hosts.append(Host(name, addresses.host_address(*place), addresses.host_mac(*place), rack, pod,
                                management_ip))
        self._links.append(Link(name, edge, rate_bps))

    def add_links(self, below: str, above: Iterable[str], capacity_bps: int) -> None:
        self._links.extend(Link(below, name, capacity_bps) for name in above)

    def fabric(self) -> Fabric:
        return Fabric(self._name, tuple(self._hosts), tuple(self._switches), tuple(self._links))


def _check_count(parameter: str, count: int, maximum: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= maximum:
        raise InvalidFabric(f"{parameter}: must be a whole number in 1 ... {maximum}, not {count!r}")


def _check_total(what: str, count: int, maximum: int) -> None:
    if count > maximum:
        raise InvalidFabric(f"{count} {what} are asked for; a fabric holds at most {maximum}")


def _rate(parameter: str, rate_bps: float) -> int:
    if not 1 <= rate_bps <= 1e15:
        raise InvalidFabric(f"{parameter}: must be in 1 ... 1e15 bit/s, not {rate_bps!r}")
    return round(rate_bps)


def _uplink_rate(parameter: str, below_bps: int, ratio: float, uplinks: int) -> int:
    if not 0 < ratio <= 1e6:
        raise InvalidFabric(f"{parameter}: must be a positive ratio of at most 1e6, not {ratio!r}")
    rate_bps = round(below_bps / ratio / uplinks)
    if rate_bps < 1:
        raise InvalidFabric(f"{parameter}: a ratio of {ratio:g} leaves less than 1 bit/s per uplink")
    return rate_bps
