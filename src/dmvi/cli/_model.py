"""A model function out of a user's file."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from dmvi._errors import InputError
from dmvi.cli._exits import line_within

_FORM = "expected the model as FILE.py:NAME, such as model.py:eight_schools"


def split_model(text: str) -> tuple[Path, str]:
    """The file and the function's name in "model.py:eight_schools"."""
    file, colon, name = text.rpartition(":")
    # A lone drive letter, as in C:\model.py, is no file.
    if not colon or not name.isidentifier() or not file.endswith(".py"):
        raise InputError(f"{_FORM}; got {text!r}.")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"there is no file {file!r}; check the path, which starts from {Path.cwd()}.")
    return path.resolve(), name


@contextlib.contextmanager
def loaded_model(path: Path, name: str) -> Iterator[Callable]:
    """The function `name` of the file, which is run to get it.

    While the context lasts the file's folder is where its own imports are looked up first, as
    when Python runs the file itself.
    """
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield _function(_run(path), path, name)
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed the list itself
            sys.path.remove(folder)


def _run(path: Path) -> ModuleType:
    # A name of its own, so that a file called numpyro.py or json.py does not replace the library.
    spec = importlib.util.spec_from_file_location(f"dmvi_user_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be read as a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"{error.filename}, line {error.lineno}: {error.msg}. Correct the file.") from error
    except SystemExit as error:
        raise InputError(f"{path} ended Python ({error!r}) instead of defining a model.") from error
    except Exception as error:
        line = line_within(error, path)
        where = f"{path}, line {line}" if line else str(path)
        raise InputError(
            f"{where}: {type(error).__name__}: {error}. The file has to run without errors."
        ) from error
    return module


def _function(module: ModuleType, path: Path, name: str) -> Callable:
    value = getattr(module, name, None)
    if callable(value):
        return value
    own = [
        key
        for key, item in vars(module).items()
        if callable(item) and getattr(item, "__module__", None) == module.__name__ and not key.startswith("_")
    ]
    found = f"it defines {', '.join(own)}" if own else "it defines no functions"
    problem = "has no function" if value is None else "has no function, but something else,"
    raise InputError(f"{path.name} {problem} named {name!r}; {found}.")
