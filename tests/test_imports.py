"""The import arrows: data flows through the package once, left to right, and no stage reaches back."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dmvi"

GUIDE = "dmvi.guides._guide"
TARGET = "dmvi.targets._target"
ERRORS = "dmvi._errors"
RUN = "dmvi._run"
RANDOM = "dmvi._random"
COMPILE = "dmvi._compile"
TEAM = "dmvi._team"
CLOCK = "dmvi._clock"
INTERRUPT = "dmvi._interrupt"
RECIPES = "dmvi._recipes"
STAGES = ["targets", "diffusion", "guides", "objectives", "training", "warmstart", "posterior"]

# What each stage may import of dmvi besides itself. A package stands for all of its modules.
ARROWS = {
    "_errors": set(),
    "_run": set(),
    "_random": set(),
    "_compile": set(),
    "_team": {ERRORS},
    "_clock": set(),
    "_interrupt": set(),
    "diffusion": {ERRORS, RANDOM},
    "targets": {ERRORS, COMPILE, TEAM},
    "guides": {ERRORS, "dmvi.diffusion"},
    "objectives": {ERRORS, COMPILE, RANDOM, GUIDE, TARGET},
    "training": {ERRORS, CLOCK, COMPILE, INTERRUPT, RANDOM, RUN, TEAM, GUIDE, TARGET, "dmvi.objectives"},
    "warmstart": {
        ERRORS,
        CLOCK,
        COMPILE,
        INTERRUPT,
        RANDOM,
        TARGET,
        "dmvi.targets._stream",
        "dmvi.guides",
        "dmvi.objectives",
        "dmvi.training",
    },
    "posterior": {ERRORS, CLOCK, COMPILE, INTERRUPT, RANDOM, RUN, GUIDE, TARGET, "dmvi.objectives"},
    "_recipes": {ERRORS, "dmvi.diffusion", "dmvi.guides", "dmvi.targets"},
    "_start": {CLOCK, INTERRUPT, RECIPES, TEAM, *(f"dmvi.{stage}" for stage in STAGES)},
    "_choice": {"dmvi.diffusion", "dmvi.guides"},
    "_grow": {
        CLOCK,
        RANDOM,
        RUN,
        "dmvi._choice",
        "dmvi._start",
        "dmvi.guides",
        "dmvi.warmstart",
        "dmvi.targets",
        "dmvi.training",
    },
    "_checkpoint": {
        ERRORS,
        CLOCK,
        RECIPES,
        "dmvi._grow",
        "dmvi._start",
        "dmvi.guides",
        "dmvi.targets",
        "dmvi.training",
        "dmvi.posterior",
    },
    "_train": {
        ERRORS,
        CLOCK,
        INTERRUPT,
        RUN,
        TEAM,
        "dmvi._checkpoint",
        "dmvi._grow",
        "dmvi._start",
        "dmvi.guides",
        "dmvi.targets",
        "dmvi.training",
    },
    "_fit": {
        ERRORS,
        CLOCK,
        INTERRUPT,
        "dmvi._checkpoint",
        "dmvi._choice",
        "dmvi._grow",
        "dmvi._start",
        "dmvi._train",
        RANDOM,
        RUN,
        TEAM,
        RECIPES,
        *(f"dmvi.{stage}" for stage in STAGES),
    },
    "_load": {ERRORS, RECIPES, *(f"dmvi.{stage}" for stage in STAGES)},
    "_fit_many": {
        ERRORS,
        CLOCK,
        INTERRUPT,
        RUN,
        RECIPES,
        "dmvi._dask",
        "dmvi._fit",
        "dmvi._many_block",
        *(f"dmvi.{stage}" for stage in STAGES),
    },
    "calibration": {"dmvi.posterior"},
    "_study": {ERRORS, "dmvi.posterior", "dmvi.targets"},
    "_calibrate": {
        ERRORS,
        RUN,
        "dmvi._fit",
        "dmvi._fit_many",
        "dmvi._study",
        "dmvi.calibration",
        "dmvi.guides",
        "dmvi.objectives",
        "dmvi.posterior",
    },
    "_many_block": {CLOCK, COMPILE, INTERRUPT, RUN, "dmvi._fit", *(f"dmvi.{stage}" for stage in STAGES)},
    "_dask": {ERRORS, CLOCK, "dmvi._many_block", "dmvi.targets", "dmvi.training"},
    "_resume": {
        ERRORS,
        CLOCK,
        INTERRUPT,
        RUN,
        RECIPES,
        "dmvi._choice",
        "dmvi._fit",
        "dmvi._start",
        *(f"dmvi.{stage}" for stage in STAGES),
    },
    "numpyro": {ERRORS, RANDOM, "dmvi.guides", "dmvi.posterior"},
    "paper": {ERRORS, RANDOM, "dmvi._fit", "dmvi.diffusion", "dmvi.guides", "dmvi.posterior"},
    "cli": {"dmvi"},
    "__init__": {"dmvi"},
    "__main__": {"dmvi"},
}


def modules(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py"))


def stage(source: Path, module: Path) -> str:
    return module.relative_to(source).parts[0].removesuffix(".py")


def imported(source: Path, module: Path) -> set[str]:
    """Full names of the modules that a module imports, wherever in the file it does so.

    A name taken from a package's table of contents counts as an import of the module it comes from, so that
    `from dmvi.guides import Guide` is an import of the contract alone.
    """
    found = set()
    package = ("dmvi", *module.relative_to(source).parts[:-1])
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {resolve(source, origin, alias.name) for alias in node.names}
    return found


def resolve(source: Path, origin: str, name: str) -> str:
    """The module that `from origin import name` reaches."""
    parts = origin.split(".")
    if parts[0] != "dmvi":
        return origin
    folder = source.joinpath(*parts[1:])
    if (folder / f"{name}.py").exists() or (folder / name).is_dir():
        return f"{origin}.{name}"
    contents = folder / "__init__.py"
    if contents.exists():
        for node in ast.parse(contents.read_text()).body:
            if not isinstance(node, ast.ImportFrom) or not node.module or node.module == origin:
                continue
            if name in {alias.asname or alias.name for alias in node.names}:
                return resolve(source, node.module, name)
    return origin


def violations(source: Path) -> list[str]:
    """One line for each import against the arrows."""
    found = []
    for module in modules(source):
        own = stage(source, module)
        allowed = {f"dmvi.{own}", *ARROWS[own]}
        for name in sorted(imported(source, module)):
            if name.split(".")[0] in {"benchmarks", "tests"}:
                found.append(f"{module.relative_to(source)} imports {name}")
            if name.split(".")[0] == "dmvi" and not any(f"{name}.".startswith(f"{a}.") for a in allowed):
                found.append(f"{module.relative_to(source)} imports {name}")
    return found


def test_every_stage_has_its_arrows():
    stages = {stage(SOURCE, module) for module in modules(SOURCE)}
    assert stages <= ARROWS.keys(), "a new stage needs a line in ARROWS and in CONTRIBUTING.md"


def test_imports_follow_the_arrows():
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("diffusion/_a.py", "from dmvi.targets import Target"),
        ("targets/_a.py", "import dmvi.diffusion"),
        ("guides/_a.py", "from dmvi.targets._target import Target"),
        ("guides/_a.py", "from dmvi import targets"),
        ("guides/_a.py", "from .. import targets"),
        ("objectives/_a.py", "from dmvi.guides import DiffusionGuide"),
        ("objectives/_a.py", "def late():\n    from dmvi.guides._diffusion import DiffusionGuide"),
        ("training/_a.py", "from ..guides import DiffusionGuide"),
        ("training/_a.py", "from dmvi.warmstart import warm_start"),
        ("warmstart/_a.py", "from dmvi.posterior import Posterior"),
        ("posterior/_a.py", "from dmvi.training import train"),
        ("posterior/_a.py", "import dmvi"),
        ("_fit.py", "from dmvi.cli import main"),
        ("_fit.py", "from dmvi.paper import METHODS"),
        ("paper/_a.py", "from dmvi.cli import main"),
        ("cli/_a.py", "import benchmarks.lab"),
    ],
)
def test_an_import_against_the_arrows_is_seen(tmp_path, module, line):
    write_package(tmp_path, module, line)
    assert violations(tmp_path) != []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("objectives/_a.py", "from dmvi.guides import Guide"),
        ("training/_a.py", "from ..guides._guide import Guide"),
        ("guides/_a.py", "from dmvi.diffusion import MLP\nfrom dmvi._errors import InputError"),
        ("cli/_a.py", "import dmvi\nfrom dmvi.posterior import Posterior"),
    ],
)
def test_an_import_along_the_arrows_is_let_through(tmp_path, module, line):
    write_package(tmp_path, module, line)
    assert violations(tmp_path) == []


def write_package(source: Path, module: str, line: str) -> None:
    """A small package of the same shape with one more module in it."""
    for name in [*STAGES, "cli", "paper"]:
        (source / name).mkdir()
        (source / name / "__init__.py").write_text("")
    (source / "guides" / "__init__.py").write_text(
        "from dmvi.guides._diffusion import DiffusionGuide as DiffusionGuide\n"
        "from dmvi.guides._guide import Guide as Guide\n"
    )
    (source / "guides" / "_guide.py").write_text("class Guide: ...\n")
    (source / "guides" / "_diffusion.py").write_text("class DiffusionGuide: ...\n")
    (source / module).write_text(line + "\n")


def test_what_only_some_calls_need_is_imported_by_them():
    """`import dmvi` waits for none of the slow libraries that come with ArviZ, tables and figures."""
    slow = [
        "pandas",
        "pyarrow",
        "matplotlib",
        "xarray",
        "arviz_base",
        "arviz_stats",
        "scipy.stats",
        "rich.live",
    ]
    code = f"import sys, dmvi; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
