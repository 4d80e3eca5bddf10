"""What can go wrong with an emulation. Each message is one line that says what to do."""


class EmulationError(Exception):
    """The emulation cannot do what was asked."""


class MissingRequirement(EmulationError):
    """The machine lacks a program, a kernel feature or a right that the emulation needs."""


class InvalidSettings(EmulationError):
    """A setting is out of range; the message names it."""


class EmulationRunning(EmulationError):
    """Another emulation runs on this machine, which holds one at a time."""


class AddressConflict(EmulationError):
    """The machine uses addresses of the management network for something else."""


class NotDiscovered(EmulationError):
    """The controller did not find the whole fabric in time."""


class TooLarge(EmulationError):
    """The fabric needs more than this machine has."""
