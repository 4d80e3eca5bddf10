"""Fabrics as plain descriptions for the emulation and the simulator: no process, file or clock in here."""

from speedwell.topo.fabric.builders import fat_tree, spine_leaf, three_tier
from speedwell.topo.fabric.errors import InvalidFabric, UnknownNode
from speedwell.topo.fabric.model import Fabric, Host, Link, Port, Switch, Tier

__all__ = ["Fabric", "Host", "InvalidFabric", "Link", "Port", "Switch", "Tier", "UnknownNode", "fat_tree",
           "spine_leaf", "three_tier"]
