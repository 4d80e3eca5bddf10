"""Link rates: an HTB class per port with a short queue.

The queue below an HTB class is a `pfifo` as long as the interface's transmit queue length, so that is set when the
interface is made and holds for every class that Open vSwitch or `tc` adds to the port, also after a restart of
either. Further queues of a port become further entries in `queues` of its QoS record.
"""

from speedwell.topo.emulation.settings import Settings

_ETHERNET_HEADER_BYTES = 14
_BURST_SECONDS = 0.001
_TRAFFIC_CLASSES = 8
_CLASSIFIER_PRIORITY = 1


def burst_bytes(capacity_bps: int, settings: Settings) -> int:
    """What a port may send at once: two full frames, or a millisecond at its rate on fast links, where a timer
    that fires late would otherwise cost rate."""
    frames_bytes = 2 * (settings.fabric_mtu + _ETHERNET_HEADER_BYTES)
    return max(frames_bytes, round(capacity_bps * _BURST_SECONDS / 8))


def port_qos(interface: str, capacity_bps: int, settings: Settings) -> list[str]:
    """The part of an `ovs-vsctl` command that limits what a switch sends out of a port."""
    burst_bits = 8 * burst_bytes(capacity_bps, settings)
    limits = [f"other_config:{key}={value}" for key, value in
              (("min-rate", capacity_bps), ("max-rate", capacity_bps), ("burst", burst_bits))]
    return ["--", f"--id=@queue-{interface}", "create", "Queue", *limits,
            "--", f"--id=@qos-{interface}", "create", "QoS", "type=linux-htb", *limits[1:],
            f"queues:0=@queue-{interface}",
            "--", "set", "Port", interface, f"qos=@qos-{interface}"]


def host_port_qos(interface: str, capacity_bps: int, settings: Settings) -> list[str]:
    """As `port_qos` for a port to a host: a queue for each traffic class, by `Settings.host_queues`."""
    burst_bits = 8 * burst_bytes(capacity_bps, settings)
    limits = [f"other_config:max-rate={capacity_bps}", f"other_config:burst={burst_bits}"]
    queues = [word for number, (share, precedence) in enumerate(settings.host_queues) for word in (
        "--", f"--id=@queue-{interface}-{number}", "create", "Queue", *limits,
        f"other_config:min-rate={round(capacity_bps * share)}", f"other_config:priority={precedence}")]
    return [*queues, "--", f"--id=@qos-{interface}", "create", "QoS", "type=linux-htb", limits[0],
            *(f"queues:{number}=@queue-{interface}-{number}" for number in range(len(settings.host_queues))),
            "--", "set", "Port", interface, f"qos=@qos-{interface}"]


def classify_by_dscp(interface: str) -> list[str]:
    """The lines for `tc -batch` that send packets to a host to the queues of `host_port_qos`: what its sender's agent
    vouches for is in the DSCP."""
    return [f"filter add dev {interface} parent 1: protocol ip prio {_CLASSIFIER_PRIORITY} "
            f"u32 match ip dsfield {number << 2:#x} 0xfc flowid 1:{number + 1:x}"
            for number in range(1, _TRAFFIC_CLASSES)]


def classify(interface: str, settings: Settings) -> list[str]:
    """The lines for `tc -batch` that send packets between switches to queues by their MPLS traffic class.

    Class n goes to queue n, which Open vSwitch keeps as HTB class `1:(n+1)`; what has no label, class 0, and classes
    whose queue does not exist go to queue 0. This is how hardware does it (RFC 3270, E-LSP), and it works where
    `set_queue` is ignored. Queue 0 is made as short as asked.
    """
    return [f"qdisc replace dev {interface} parent 1:1 handle 10: pfifo limit {settings.best_effort_packets}",
            *(f"filter add dev {interface} parent 1: protocol mpls_uc prio {_CLASSIFIER_PRIORITY} "
              f"u32 match u32 {traffic_class << 9:#010x} 0x00000e00 at 0 flowid 1:{traffic_class + 1:x}"
              for traffic_class in range(1, _TRAFFIC_CLASSES))]


def host_traffic_control(interface: str, capacity_bps: int, settings: Settings) -> list[str]:
    """The lines for `tc -batch` that limit what a host sends."""
    burst = burst_bytes(capacity_bps, settings)
    return [f"qdisc replace dev {interface} root handle 1: htb default 1",
            f"class replace dev {interface} parent 1: classid 1:1 htb rate {capacity_bps}bit "
            f"ceil {capacity_bps}bit burst {burst} cburst {burst} quantum {settings.fabric_mtu}",
            *([] if settings.host_queue_packets is None else
              [f"qdisc replace dev {interface} parent 1:1 handle 10: pfifo limit {settings.host_queue_packets}"])]
