"""What can be wrong with a fabric."""


class InvalidFabric(ValueError):
    """The fabric that was asked for cannot be built; the message names the parameter or the node."""


class UnknownNode(LookupError):
    """A fabric holds no host or switch of that name."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(f"the fabric has no {kind} named {name!r}")
        self.name = name
