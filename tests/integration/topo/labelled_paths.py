"""Static flow entries for a spine-leaf fabric: every packet between racks takes one spine, with labels."""

from speedwell.topo.emulation import Emulation
from speedwell.topo.fabric import Fabric

FIRST_LABEL = 100
OUTER_LABEL_OFFSET = 1000


def install(emulation: Emulation, spine: str, labels: int = 1) -> None:
    """Replace all flow entries of the leaves and of `spine`; packets between racks carry 1 or 2 labels."""
    fabric = emulation.fabric
    for switch in (*(switch.name for switch in fabric.switches if switch.tier == "edge"), spine):
        entries = _spine_entries(fabric, spine, labels) if switch == spine else _leaf_entries(fabric, switch, spine,
                                                                                             labels)
        emulation.ovs_ofctl(switch, "del-flows")
        emulation.ovs_ofctl(switch, "add-flows", "-", standard_input="\n".join(entries))


def _label(fabric: Fabric, host: str, labels: int) -> int:
    index = [each.name for each in fabric.hosts].index(host)
    return FIRST_LABEL + index + (OUTER_LABEL_OFFSET if labels == 2 else 0)


def _spine_entries(fabric: Fabric, spine: str, labels: int) -> list[str]:
    entries = []
    for host in fabric.hosts:
        port = fabric.port_toward(spine, fabric.edge_switch_of(host).name).number
        entries += [f"arp,arp_tpa={host.ip},actions=output:{port}",
                    f"mpls,mpls_label={_label(fabric, host.name, labels)},actions=output:{port}"]
    return entries


def _leaf_entries(fabric: Fabric, leaf: str, spine: str, labels: int) -> list[str]:
    entries = []
    uplink = fabric.port_toward(leaf, spine).number
    for host in fabric.hosts:
        label = _label(fabric, host.name, labels)
        if fabric.edge_switch_of(host).name == leaf:
            port = fabric.port_toward(leaf, host.name).number
            pops = "pop_mpls:0x8847,pop_mpls:0x0800" if labels == 2 else "pop_mpls:0x0800"
            entries += [f"arp,arp_tpa={host.ip},actions=output:{port}",
                        f"ip,nw_dst={host.ip},actions=output:{port}",
                        f"mpls,mpls_label={label},actions={pops},output:{port}"]
        else:
            inner = (f"push_mpls:0x8847,set_field:{label - OUTER_LABEL_OFFSET}->mpls_label," if labels == 2 else "")
            entries += [f"arp,arp_tpa={host.ip},actions=output:{uplink}",
                        f"ip,nw_dst={host.ip},actions={inner}push_mpls:0x8847,set_field:{label}->mpls_label,"
                        f"output:{uplink}"]
    return entries
