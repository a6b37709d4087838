"""The documentation's code runs and its links lead somewhere.

Blocks of one page share a namespace, in order, as a reader would type them. A comment right above a block
says how: `<!-- run small -->` cuts every fit to a few steps, `<!-- not run -->` leaves the block out.
"""

import functools
import re
from pathlib import Path

import pytest

import dmvi

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<how>[a-z ]+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?:#[^)]*)?\)")
SMALL_STEPS = 100


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(text: str, fit, monkeypatch) -> dict:
    """Runs the blocks of a page; returns the namespace they leave."""
    namespace: dict = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        how = block["how"]
        assert how in {None, "run small", "not run"}, f"unknown mark {how!r}"
        if how == "not run":
            continue
        small = functools.partial(fit, steps=SMALL_STEPS, progress=False)
        monkeypatch.setattr(dmvi, "fit", small if how == "run small" else fit)
        exec(compile(block["code"], "<code block>", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name)
def test_code_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text(), dmvi.fit, monkeypatch)


def test_readme_has_code():
    assert BLOCK.search((ROOT / "README.md").read_text())


def test_blocks_share_a_namespace_and_marks_are_kept(monkeypatch):
    page = (
        "```python\nimport dmvi\na = dmvi.fit()\n```\ntext\n"
        "<!-- run small -->\n```python\nb = (a, dmvi.fit())\n```\n"
        "<!-- not run -->\n```python\nb = None\n```\n"
    )
    left = run_page(page, lambda **keywords: keywords.get("steps"), monkeypatch)
    assert left["b"] == (None, SMALL_STEPS)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = {link["path"] for link in LINK.finditer(page.read_text())}
    assert {link for link in links if not (page.parent / link).exists()} == set()
