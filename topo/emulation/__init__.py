"""A fabric as running machines: hosts and switches in network namespaces of this machine, built with Mininet."""

from speedwell.topo.emulation.emulation import Emulation
from speedwell.topo.emulation.errors import (
    AddressConflict,
    EmulationError,
    EmulationRunning,
    InvalidSettings,
    MissingRequirement,
    TooLarge,
)
from speedwell.topo.emulation.reservation import remove_leftovers
from speedwell.topo.emulation.settings import INSECURE, Settings

__all__ = ["INSECURE", "AddressConflict", "Emulation", "EmulationError", "EmulationRunning", "InvalidSettings",
           "MissingRequirement", "Settings", "TooLarge", "remove_leftovers"]
