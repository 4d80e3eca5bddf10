"""A fabric as running machines: hosts and switches in network namespaces of this machine, built with Mininet."""

from topo.emulation.emulation import Emulation
from topo.emulation.errors import (
    AddressConflict,
    EmulationError,
    EmulationRunning,
    InvalidSettings,
    MissingRequirement,
    TooLarge,
)
from topo.emulation.reservation import remove_leftovers
from topo.emulation.settings import INSECURE, Settings

__all__ = ["INSECURE", "AddressConflict", "Emulation", "EmulationError", "EmulationRunning", "InvalidSettings",
           "MissingRequirement", "Settings", "TooLarge", "remove_leftovers"]
