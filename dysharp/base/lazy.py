"""Names of a package that load when they are first used, so that one command does not pay for the modules of another; registers load all modules."""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def loader(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of `package`, which loads its late names. Raises AttributeError for other names."""

    def load(name: str) -> Any:
        places = late_names(package)
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        value = importlib.import_module(f"{package}.{name}") if module == package else getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load


@cache
def late_names(package: str) -> dict[str, tuple[str, str]]:
    """{name: (module, name there)} of what type checkers see below `if TYPE_CHECKING:` in the source of `package`: its only list of late names."""
    spec: Any = sys.modules[package].__spec__
    tree = ast.parse(spec.loader.get_source(package))
    late = [line for block in tree.body if isinstance(block, ast.If) for line in block.body if isinstance(line, ast.ImportFrom)]
    return {one.asname or one.name: (line.module or "", one.name) for line in late for one in line.names}


@cache
def import_all(package: str) -> None:
    """Import every module of the folder of `package`, so that what they register is known."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
