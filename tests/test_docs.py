"""The documentation's code runs and its links lead somewhere.

Blocks of one page share a namespace, in order, as a reader would type them. A comment right above a block
says how, in parts set off by commas: `<!-- run small -->` cuts every fit to a few steps,
`<!-- run gaussian -->` to a few steps of a Gaussian guide (where a block shows a way in, the same for every
guide), `<!-- not run -->` leaves the block out, `<!-- needs pymc -->` leaves it out where that extra is not
installed.
"""

import functools
import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

import dmvi
from tests.targets.stan import FakeStan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<how>[a-z, ]+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?:#[^)]*)?\)")
SMALL_STEPS = 100
# What a block may need, and the module that shows whether it is there.
MODULES = {"pymc": "pymc", "tfp": "tensorflow_probability", "bridgestan": "bridgestan"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(text: str, fit, monkeypatch) -> tuple[dict, set[str]]:
    """Runs the blocks of a page; returns the namespace they leave and the extras that were missing."""
    namespace, missing = {"__name__": "page"}, set()
    for block in BLOCK.finditer(text):
        how = set(block["how"].split(", ") if block["how"] else [])
        needs = {mark.removeprefix("needs ") for mark in how if mark.startswith("needs ")}
        assert needs <= MODULES.keys(), f"unknown library in {block['how']!r}"
        assert not {"run small", "run gaussian"} <= how, block["how"]
        marks = how - {f"needs {extra}" for extra in needs}
        assert marks <= {"run small", "run gaussian", "not run"}, block["how"]
        absent = {extra for extra in needs if not is_installed(MODULES[extra])}
        missing |= absent
        if "not run" in how or absent:
            continue
        small = functools.partial(fit, steps=SMALL_STEPS, progress=False)
        fits = {"run small": small, "run gaussian": functools.partial(small, guide="full-rank")}
        monkeypatch.setattr(dmvi, "fit", next((fits[mark] for mark in how if mark in fits), fit))
        exec(compile(block["code"], "<code block>", "exec"), namespace)
    return namespace, missing


def is_installed(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


@pytest.fixture
def _bridgestan(monkeypatch):
    """BridgeStan fetches sources when it compiles, so an object with its documented interface stands in."""
    module = types.ModuleType("bridgestan")
    module.StanModel = lambda stan_file, data: FakeStan()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "bridgestan", module)


@pytest.mark.usefixtures("_bridgestan")
@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name)
def test_code_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, missing = run_page(page.read_text(), dmvi.fit, monkeypatch)
    if missing:
        extras = ",".join(sorted(missing))
        pytest.skip(f"all blocks ran but those that need pip install dmvi[{extras}]")


def test_readme_has_code():
    assert BLOCK.search((ROOT / "README.md").read_text())


def test_blocks_share_a_namespace_and_marks_are_kept(monkeypatch):
    page = (
        "```python\nimport dmvi\na = dmvi.fit()\n```\ntext\n"
        "<!-- run small -->\n```python\nb = (a, dmvi.fit())\n```\n"
        "<!-- run gaussian -->\n```python\nc = dmvi.fit()\n```\n"
        "<!-- not run -->\n```python\nb = None\n```\n"
    )
    left, _ = run_page(page, lambda **keywords: keywords, monkeypatch)
    small = {"steps": SMALL_STEPS, "progress": False}
    assert left["b"] == ({}, small)
    assert left["c"] == {**small, "guide": "full-rank"}


@pytest.mark.parametrize("installed", [False, True])
def test_blocks_wait_for_what_they_need(installed, monkeypatch):
    monkeypatch.setitem(MODULES, "pymc", "json" if installed else "no_such_module")
    page = "```python\na = 1\n```\n<!-- needs pymc, run small -->\n```python\na = 2\n```\n"
    left, missing = run_page(page, dmvi.fit, monkeypatch)
    assert left["a"] == (2 if installed else 1)
    assert missing == (set() if installed else {"pymc"})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = {link["path"] for link in LINK.finditer(page.read_text())}
    assert {link for link in links if not (page.parent / link).exists()} == set()
