"""Fabrics as a user writes them: `three-tier,pods=4,racks=4,hosts=4`, or the name of a file with a description."""

from collections.abc import Callable, Mapping
from pathlib import Path

from speedwell.topo.fabric import Fabric, InvalidFabric, fat_tree, spine_leaf, three_tier
from speedwell.topo.fabric.builders import FULL_BISECTION, MAYFLOWER_OVERSUBSCRIPTION

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "three-tier": ("pods", "racks", "hosts", "aggregations", "cores", "host_mbps", "edge_ratio",
                   "aggregation_ratio"),
    "fat-tree": ("k", "host_mbps", "edge_ratio", "aggregation_ratio", "pods"),
    "spine-leaf": ("leaves", "spines", "hosts", "host_mbps", "ratio"),
}
"""The families and their parameters, in the order in which `mn` takes them. Everything that takes a fabric takes
these; each is left at the default of its builder in `speedwell.topo.fabric` if it is not given."""

_BUILDERS: Mapping[str, Callable[..., Fabric]] = {
    "three-tier": three_tier, "fat-tree": fat_tree, "spine-leaf": spine_leaf}
_DEFAULT_RATIOS = {"three-tier": MAYFLOWER_OVERSUBSCRIPTION, "fat-tree": FULL_BISECTION}
_OF_BUILDERS = {"racks": "racks_per_pod", "aggregations": "aggregations_per_pod", "ratio": "oversubscription"}
_TIERS = {"edge_ratio": "edge", "aggregation_ratio": "aggregation"}
_BITS = 1e6

Number = int | float


def parse_fabric(text: str) -> Fabric:
    """The fabric that `text` names: a file with its JSON description, or a family and NAME=VALUE for parameters.

    The parameters may also have the names that the builders in `topo.fabric` give them. Raises InvalidFabric naming
    what is wrong and what there is.
    """
    family, *words = (word.strip() for word in text.split(","))
    if family in PARAMETERS:
        given: dict[str, Number] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise InvalidFabric(f"{family}: {word!r} is not NAME=VALUE")
            if name.strip() in given:
                raise InvalidFabric(f"{family}: {name.strip()!r} is given twice")
            given[name.strip()] = _number(name, value)
        return build(family, given)
    return read_fabric(Path(text), f"there are {', '.join(PARAMETERS)}, such as three-tier,pods=4,racks=4")


def read_fabric(file: Path, hint: str = "`speedwell fabric ... --describe` prints such a file") -> Fabric:
    """The fabric that a file describes as JSON. Raises InvalidFabric naming the file and the field; `hint` says what
    else there is if there is no such file."""
    try:
        return Fabric.from_json(file.read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        raise InvalidFabric(f"{str(file)!r} is neither a file nor a fabric; {hint}") from None
    except OSError as error:
        raise InvalidFabric(f"{file}: {error.strerror}") from None
    except InvalidFabric as error:
        raise InvalidFabric(f"{file}: {error}") from None


def build(family: str, given: Mapping[str, Number]) -> Fabric:
    """A fabric of one of `PARAMETERS`'s families. Raises InvalidFabric naming the parameter that is wrong."""
    hosts = "hosts_per_leaf" if family == "spine-leaf" else "hosts_per_rack"
    of_builders = {**_OF_BUILDERS, "hosts": hosts}
    known = set(PARAMETERS[family])
    also = {of_builders.get(name, name): name for name in known} | {
        tier: name for name, tier in _TIERS.items() if name in known} | {"host_bps": "host_mbps"}
    arguments: dict[str, Number] = {}
    ratios: dict[str, Number] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        short = also.get(name, name)
        if names.setdefault(short, name) != name:
            raise InvalidFabric(f"{family}: {name!r} and {names[short]!r} are the same parameter")
        if short not in known:
            raise InvalidFabric(f"{family}: no parameter is named {name!r}; there are "
                                f"{', '.join(PARAMETERS[family])}")
        if short in _TIERS:
            ratios[_TIERS[short]] = value
        elif short == "host_mbps":
            arguments["host_bps"] = value if name == "host_bps" else value * _BITS
        else:
            arguments[of_builders.get(short, short)] = value
    both = {"oversubscription": {**_DEFAULT_RATIOS[family], **ratios}} if ratios else {}
    try:
        return _BUILDERS[family](**arguments, **both)
    except InvalidFabric as error:
        field, colon, why = str(error).partition(": ")
        short = also.get(field.removeprefix("oversubscription."), field)
        raise InvalidFabric(f"{names.get(short, short)}{colon}{why}") from None


def _number(name: str, text: str) -> Number:
    try:
        value = float(text)
        return int(value) if value.is_integer() else value
    except ValueError:
        raise InvalidFabric(f"{name}: {text!r} is not a number") from None
