"""Whose word counts where nameservers say which blocks of the namespace they own."""

import pytest

from speedwell.controller.metadata.owners import SlotOwner, SlotOwners, prefix_of
from speedwell.controller.policy.errors import TableFull
from speedwell.controller.policy.metadata.blocks import SLOTS
from speedwell.controller.policy.network.prefixes import Prefix

ALL = frozenset(range(256))
LOW, HIGH = frozenset(range(128)), frozenset(range(128, 256))


def owners() -> SlotOwners:
    return SlotOwners(lambda blocks: None)


def test_the_newer_epoch_has_a_block_that_two_claim_whoever_speaks_last() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        said = owners()
        words = [SlotOwner("10.0.0.1", 5, ALL), SlotOwner("10.0.0.2", 7, HIGH), SlotOwner("10.0.0.1", 7, LOW, HIGH)]
        for number in order:
            said.announced(words[number])
        assert {host: len(blocks) for host, blocks in said.blocks.items()} == {"10.0.0.1": 128, "10.0.0.2": 128}
        assert said.owners[127] == "10.0.0.1" and said.owners[128] == "10.0.0.2"


def test_what_a_dead_owner_said_loses_to_its_heir_and_nothing_changes_without_news() -> None:
    said = owners()
    said.announced(SlotOwner("10.0.0.1", 5, LOW))
    said.announced(SlotOwner("10.0.0.2", 5, HIGH))
    said.announced(SlotOwner("10.0.0.2", 9, ALL))
    assert set(said.owners.values()) == {"10.0.0.2"}
    version = said.version
    said.announced(SlotOwner("10.0.0.2", 9, ALL))
    said.announced(SlotOwner("10.0.0.2", 8, HIGH))
    assert said.version == version and set(said.owners.values()) == {"10.0.0.2"}


def test_who_had_a_block_lately_may_still_answer_from_its_addresses() -> None:
    said = owners()
    said.announced(SlotOwner("10.0.0.1", 5, frozenset({1}), frozenset({2})))
    assert said.senders["10.0.0.1"] == [prefix_of(1), prefix_of(2)]
    assert said.blocks == {"10.0.0.1": [(SLOTS[0] + 256, 24)]}


def test_tables_that_would_not_fit_leave_everything_as_it_was() -> None:
    def check(blocks: dict[str, list[Prefix]]) -> None:
        if len(blocks) > 1:
            raise TableFull("e0", 9, 8)

    said = SlotOwners(check)
    said.announced(SlotOwner("10.0.0.1", 5, LOW))
    with pytest.raises(TableFull):
        said.announced(SlotOwner("10.0.0.2", 6, HIGH))
    assert said.blocks.keys() == {"10.0.0.1"} and said.version == 1
