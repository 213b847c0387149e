"""Names of a package that load when they are first used, so that one command does not pay for the modules of another."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def loader(package: str, home: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`. `home`: {name: (module, name there)}. Raises AttributeError for other names."""

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = home[name]
        value = getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load
