"""Compare expert-parallel communication systems, with and without in-switch computing, on real models and real routing.

`run` simulates one system, `compare` several; `load_model`, `load_cluster` and `make_routing` make their inputs. Names load when first
used, so that `import dysharp` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dysharp.api import compare, run
    from dysharp.specs import load_cluster, load_model
    from dysharp.workload import make_routing

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "load_cluster", "load_model", "make_routing", "run"]

_HOME = {
    "run": "dysharp.api",
    "compare": "dysharp.api",
    "load_model": "dysharp.specs",
    "load_cluster": "dysharp.specs",
    "make_routing": "dysharp.workload",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
