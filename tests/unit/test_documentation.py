"""The pages: every link leads somewhere, on a code host as on the site, and the site needs nothing from elsewhere."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]
BLOCKS = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINKS = re.compile(r"\]\(([^)\s]+)\)")


@cache
def anchors(page: Path) -> set[str]:
    """What `#...` may name on a page: its headings as code hosts write them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", BLOCKS.sub("", page.read_text()), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.add(next(name for name in (slug, *(f"{slug}-{n}" for n in range(1, 99))) if name not in found))
    return found


def broken(page: Path, link: str) -> bool:
    if link.startswith(("https://", "http://")):
        return False
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or (anchor != "" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = LINKS.findall(BLOCKS.sub("", page.read_text()))
    assert [link for link in links if broken(page, link)] == []


def test_a_link_to_a_missing_file_or_heading_is_found() -> None:
    assert broken(DOCS / "index.md", "no-such-page.md")
    assert broken(DOCS / "index.md", "first-read.md#no-such-heading")


def test_every_page_is_reached_from_the_first() -> None:
    reached, waiting = set[Path](), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in LINKS.findall(page.read_text())
                    if "://" not in link and link.partition("#")[0]]
    assert set(DOCS.rglob("*.md")) <= reached


def test_a_page_of_a_task_stays_short_enough_to_be_read() -> None:
    lengths = {page.name: len(page.read_text().split()) for page in DOCS.glob("*.md") if page.name != "results.md"}
    assert {name: words for name, words in lengths.items() if words > 2_000} == {}


def test_every_interval_and_figure_of_the_results_stands_on_a_page_behind_them() -> None:
    behind = "".join(page.read_text() for page in (DOCS / "results").glob("*.md"))
    rows = [line for line in (DOCS / "results.md").read_text().splitlines() if line.startswith("|")]
    quoted = [figure for row in rows for figure in re.findall(
        r"\[[-+\d.]+, [-+\d.]+\]|(?<![\w.\[+-])\d+\.\d+(?![\w.])", row)]
    assert len(quoted) > 100
    assert [figure for figure in quoted if figure not in behind] == []


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "scripts/site", tmp_path], capture_output=True, text=True, timeout=120, check=False,
                          env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)",
                            page.read_text())
        assert loaded == [], page.name
    assert not [style for style in tmp_path.rglob("*.css")
                if re.search(r"(?:@import|url\()[\"' ]*(?:https?:)?//", style.read_text())]
    assert "nameserv" in (tmp_path / "searchindex.js").read_text()
