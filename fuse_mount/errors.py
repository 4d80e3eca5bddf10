"""What can keep a mount from starting."""


class MountError(Exception):
    """The mount cannot be made; the message says why and what to do."""
