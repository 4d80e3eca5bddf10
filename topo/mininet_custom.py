"""Fabrics for Mininet's own command:

    mn --custom topo/mininet_custom.py --topo three-tier,4,4,4 --controller speedwell
    mn --custom topo/mininet_custom.py --topo spine-leaf,leaves=2,spines=1,fail_mode=standalone --controller none
    mn --custom topo/mininet_custom.py --topo tree,2 --switch speedwell

`mn` runs this file with the system's Python, which knows neither the project nor what it needs.
"""

import inspect
import site
import sys
from pathlib import Path


def _make_project_importable() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    project = Path(frame.f_code.co_filename).resolve().parents[1]  # `mn` sets no __file__
    sys.path.insert(0, str(project))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site.addsitedir(str(project / ".venv" / "lib" / version / "site-packages"))


_make_project_importable()

try:
    from speedwell.topo.emulation.mn import CLI, Network, controllers, switches, topos
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing for {sys.executable}: run scripts/setup first") from None

Mininet = Network   # what `mn` makes

__all__ = ["CLI", "Mininet", "controllers", "switches", "topos"]
