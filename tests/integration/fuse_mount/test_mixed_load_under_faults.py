"""Programs write, append, patch, rename and remove files on two mounts while daemons are killed again and again."""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.fuse_mount.campaign import FAULTS, Campaign
from tests.wall_clock import requires_compiler

pytestmark = [pytest.mark.root, requires_compiler]


def run(directory: Path, rounds: int, seed: int) -> None:
    generator = random.Random(seed)
    with ExitStack() as stack:
        campaign = Campaign(directory, stack)
        campaign.gets_on("the start")
        for number in range(rounds):
            kind = FAULTS[(number + seed) % len(FAULTS)] if rounds >= len(FAULTS) else generator.choice(FAULTS)
            campaign.fault(kind, generator)
            campaign.gets_on(f"fault {number} of seed {seed} ({kind})")
        campaign.judge()


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_when_daemons_are_killed_below_programs(tmp_path: Path, seed: int) -> None:
    run(tmp_path, rounds=3, seed=seed)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_acknowledged_is_lost_over_many_faults(tmp_path: Path, seed: int) -> None:
    run(tmp_path, rounds=25, seed=seed)
