"""The site: Sphinx reads the Markdown pages as they are. `scripts/site` builds it."""

import re

from sphinx.application import Sphinx

project = "Speedwell"
extensions = ["myst_parser"]
exclude_patterns = ["results/*.csv"]
myst_heading_anchors = 6
html_theme = "furo"
html_title = "Speedwell"
html_show_sphinx = False
html_copy_source = False

NAVIGATION = {
    "Start": "first-read\npictures\nglossary",
    "Install and operate": "install\nthree-machines\noperating\nfailures\ndataservers\n"
                           "nameserver\nnamespace-owners\nrepair\nbackup\nupgrades\nsecurity\nidentities\ntls\nnetwork-edge\nmonitoring\npage",
    "Use the files": "mount\nfsspec\npython-api",
    "Steer the network": "topology\nplacement\nhost-agent\nmetadata-stores",
    "The systems": "together\nmayflower-plus\nmincof\nsinbad\nxco\nmetaflow",
    "Change and extend": "experiments\nemulated-experiments\nsimulator\nextending\ncontroller-rooms\nmount-internals",
    "Reference": "reference/*",
    "Results": "results\nresults/*",
}
"""The side bar. It stands here, not in the first page, because code hosts show a toctree as code."""


def adapt(_app: Sphinx, page: str, source: list[str]) -> None:
    outside = rf"\[([^]]+)\]\((?:\.\./){{{page.count('/') + 1}}}[^)]*\)"     # of the repository, not of the site
    source[0] = re.sub(outside, r"\1", source[0])
    if page == "index":
        source[0] += "".join(f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n{pages}\n```\n"
                             for caption, pages in NAVIGATION.items())


def setup(app: Sphinx) -> None:
    app.connect("source-read", adapt)
