"""Compare expert-parallel communication systems, with and without in-switch computing, on real models and real routing.

`run` simulates one system, `compare` several; `network` measures a switch flit by flit; `emulate`, `wrap` and `Machine` send real
tensors through a modelled machine; `load_model`, `load_cluster` and `make_routing` make their inputs. Names load when first used, so
that `import dysharp` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dysharp.api import advise, capture, compare, compare_network, emulate, network, run, wrap
    from dysharp.api import machine_with_engine as Machine
    from dysharp.specs import load_cluster, load_model
    from dysharp.workload import make_routing, save_trace

__version__ = "0.1.0"
__all__ = [
    "Machine", "__version__", "advise", "capture", "compare", "compare_network", "emulate", "load_cluster", "load_model", "make_routing", "network",
    "run", "save_trace", "wrap",
]  # fmt: skip

_HOME = {
    "run": ("dysharp.api", "run"),
    "advise": ("dysharp.api", "advise"),
    "capture": ("dysharp.api", "capture"),
    "compare": ("dysharp.api", "compare"),
    "compare_network": ("dysharp.api", "compare_network"),
    "emulate": ("dysharp.api", "emulate"),
    "network": ("dysharp.api", "network"),
    "wrap": ("dysharp.api", "wrap"),
    "Machine": ("dysharp.api", "machine_with_engine"),
    "load_model": ("dysharp.specs", "load_model"),
    "load_cluster": ("dysharp.specs", "load_cluster"),
    "make_routing": ("dysharp.workload", "make_routing"),
    "save_trace": ("dysharp.workload", "save_trace"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
