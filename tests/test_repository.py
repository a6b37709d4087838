"""Rules of the house that a reader would otherwise have to enforce by eye."""

import ast
import re
from pathlib import Path

import dmvi

ROOT = Path(__file__).parents[1]
CODE = [path for folder in ("src", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
TEXT_PATTERNS = [
    "*.md",
    "*.toml",
    "*.txt",
    "*.cff",
    ".*.yaml",
    "Makefile",
    ".ci/run",
    "docs/**/*.md",
    "tests/**/*.py",
]
TEXTS = [path for pattern in TEXT_PATTERNS for path in sorted(ROOT.glob(pattern))]

MODULE_LINES = 400
BODY_LINES = 60
# Folders of one person's or one machine's disk.
MACHINE_PATH = re.compile(r"(?<![\w.:])/(home|root|Users|work|tmp|mnt|opt)/\w|\b[A-Z]:\\+Users")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the end."""
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return (function.end_lineno or 0) - function.body[1 if documented else 0].lineno + 1


def test_there_is_code_to_look_at():
    assert len(CODE) > 10
    assert len(TEXTS) > 10


def test_modules_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in CODE}
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_functions_are_short():
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": body_lines(node)
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > BODY_LINES
    }
    assert long == {}


def test_no_file_names_a_place_on_somebodys_disk():
    found = {
        f"{path.relative_to(ROOT)}:{number}": line
        for path in [*CODE, *TEXTS]
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if MACHINE_PATH.search(line)
    }
    assert found == {}


def test_pins_are_names_and_versions_only():
    pin = re.compile(r'[a-z0-9-]+==[0-9][0-9a-z.]*( ; python_version (<|>=) "3\.\d+")?')
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#") and not pin.fullmatch(line)] == []


def test_citation_names_the_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {dmvi.__version__}\n" in citation
