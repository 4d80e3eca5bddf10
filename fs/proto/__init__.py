"""The protocols' messages, generated from the .proto files beside this when the package is built (setup.py)."""

from pathlib import Path

if not Path(__file__).with_name("speedwell_pb2.py").exists():
    raise ImportError(f"{Path(__file__).parents[2]} is Speedwell's source, without its generated modules: start "
                      "Python in another directory to import what is installed, or run scripts/setup here")
