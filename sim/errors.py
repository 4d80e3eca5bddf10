"""What the simulator refuses, each with one message that says what to change."""


class SimulationError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidWorkload(SimulationError):
    """A workload that cannot be generated on the fabric."""


class InvalidSetting(SimulationError):
    """A setting of a simulation or an experiment that is out of range."""


class PolicyFailed(SimulationError):
    """A policy of a user's own raised what it should not."""


class Overloaded(SimulationError):
    """More is asked of the network than it can carry, so that reads pile up without end."""
