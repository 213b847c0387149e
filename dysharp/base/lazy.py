"""Names of a package that load when they are first used, so that one command does not pay for the modules of another; registers load all modules."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any


def loader(package: str, home: Mapping[str, Sequence[str]], **renamed: tuple[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`. `home`: {module: its names}; `renamed`: name = (module, name there). Raises AttributeError for other names."""
    places = {name: (module, name) for module, names in home.items() for name in names} | renamed

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        value = getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load


@cache
def import_all(package: str) -> None:
    """Import every module of the folder of `package`, so that what they register is known."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
