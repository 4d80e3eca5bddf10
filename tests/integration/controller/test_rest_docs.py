"""The examples of docs/reference/rest.md run as they stand."""

import re
import subprocess
from pathlib import Path

import pytest

from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import northbound

pytestmark = pytest.mark.root

IDENTITY = "/var/tmp/speedwell/fabric/identity"
PAGE = Path(__file__).parents[3] / "docs/reference/rest.md"


def test_every_example_works(tmp_path: Path) -> None:
    examples = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) > 8
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=1, host_bps=40e6)
    key_file = tmp_path / "key"
    key_file.write_bytes(b"a key of good length")
    settings = f'poll_interval_seconds = 0.3\nqueues = "mincof"\ncoflow_key_file = "{key_file}"\n'
    with northbound(fabric, tmp_path, settings) as running:
        running.meet_all_hosts()
        examples = [example.replace(IDENTITY, str(tmp_path / "identity")) for example in examples]
        script = "".join(f"echo '#{number}'\n{example}" for number, example in enumerate(examples))
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True,
                              text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "urn:speedwell:problem:invalid-request" in done.stdout
