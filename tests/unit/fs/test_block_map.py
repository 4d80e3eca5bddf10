"""Who owns which blocks after members came and went."""

from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.slots import BLOCKS
from speedwell.fs.store.block_map import NOBODY, BlockMap, Owner


def grown(names: str) -> tuple[BlockMap, dict[str, str]]:
    """After these members joined one after the other."""
    owners, alive = BlockMap(), dict[str, str]()
    for name in names:
        alive[name] = f"at {name}"
        if owners.gone(alive):
            owners = owners.inherited(alive, name)
        for giver in sorted(alive):
            if gift := owners.gift(giver, alive):
                owners = owners.given(gift[0], Owner(gift[1], alive[gift[1]]))
                break
    return owners, alive


def test_the_first_member_owns_everything_and_each_further_one_half_of_the_largest_part() -> None:
    assert grown("a")[0].blocks_of("a") == set(range(BLOCKS))
    owners, _ = grown("abcd")
    assert [len(owners.blocks_of(each)) for each in "abcd"] == [64] * 4


def test_only_who_owns_most_gives_and_only_to_one_without_any() -> None:
    owners, alive = grown("ab")
    assert owners.gift("a", alive) is owners.gift("b", alive) is None
    assert [owners.gift(each, {**alive, "c": "at c"}) is not None for each in "abc"] == [False, True, False]


@given(st.integers(1, 9), st.sets(st.integers(0, 8)))
def test_the_dead_leave_all_their_blocks_to_the_living_and_nobody_elses_move(members: int, dead: set[int]) -> None:
    names = "abcdefghi"[:members]
    before, alive = grown(names)
    gone = {names[each] for each in dead if each < members}
    left = {name: address for name, address in alive.items() if name not in gone}
    assert before.gone(left) == gone
    if not left:
        return
    after = before.inherited(left, min(left))
    assert {owner.member for owner in after.owners} <= left.keys()
    assert all(after.owners[block] == owner for block, owner in enumerate(before.owners) if owner.member in left)
    assert BlockMap.decode(after.encode()) == after


def test_a_map_nobody_wrote_is_nobodys() -> None:
    assert BlockMap.decode(b"") == BlockMap() and set(BlockMap().owners) == {NOBODY}


def test_who_leaves_alone_has_no_heir() -> None:
    owners, alive = grown("abc")
    assert owners.heir("c", alive) in "ab" and BlockMap().heir("a", {"a": ""}) == ""
