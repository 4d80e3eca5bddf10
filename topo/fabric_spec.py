"""Fabrics as a user writes them on a command line: `three-tier,pods=4,racks_per_pod=4,hosts_per_rack=4`."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster.errors import InvalidSetting
from topo.fabric import Fabric, InvalidFabric, fat_tree, spine_leaf, three_tier

KINDS: dict[str, Callable[..., Fabric]] = {
    "three-tier": three_tier,
    "fat-tree": fat_tree,
    "spine-leaf": spine_leaf,
}


def parse_fabric(text: str) -> Fabric:
    """The fabric that `text` names: a file with its JSON description (`speedwell fabric ... --describe`
    prints one), or a kind, then parameters of its builder in `topo.fabric`.

    Rates are bits/s. Where over-subscription is per tier, write `edge=2,aggregation=4`.
    Raises InvalidSetting naming what is wrong and what there is.
    """
    kind, *words = (word.strip() for word in text.split(","))
    try:
        if kind in KINDS:
            return KINDS[kind](**_arguments(kind, words))
        if Path(text).is_file():
            return Fabric.from_json(Path(text).read_text())
    except (InvalidFabric, OSError) as error:
        raise InvalidSetting(f"{text}: {error}") from error
    raise InvalidSetting(f"{text!r} is neither a file nor a fabric; there are {', '.join(KINDS)}")


def _arguments(kind: str, words: list[str]) -> dict[str, Any]:
    defaults = {name: parameter.default for name, parameter in inspect.signature(KINDS[kind]).parameters.items()}
    tiers = defaults["oversubscription"] if isinstance(defaults["oversubscription"], Mapping) else {}
    names = [name for name in defaults if name != "oversubscription" or not tiers] + list(tiers)
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise InvalidSetting(f"{kind}: {word!r} is not NAME=VALUE with one of the names {', '.join(names)}")
        values[name] = _number(name, value)
    ratios = {tier: values.pop(tier, ratio) for tier, ratio in tiers.items()}
    return {**values, "oversubscription": ratios} if ratios else values


def _number(name: str, text: str) -> int | float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidSetting(f"{name}: {text!r} is not a number") from None
    return int(value) if value.is_integer() else value
