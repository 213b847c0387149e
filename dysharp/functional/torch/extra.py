"""Checks that the optional packages of this folder are installed in a version that this code supports."""

import importlib
from importlib.metadata import PackageNotFoundError, version

from dysharp.base import ConfigError

OLDEST_TRANSFORMERS = 5  # 4.x has other routers, other return orders, and lists of expert modules


def require_torch() -> None:
    """Raises ConfigError when torch cannot be imported."""
    _require("torch")


def require_transformers() -> None:
    """Raises ConfigError when torch or transformers is missing, or transformers is older than 5."""
    require_torch()
    _require("transformers")
    try:
        found = version("transformers")
    except PackageNotFoundError:
        found = str(getattr(importlib.import_module("transformers"), "__version__", "unknown"))
    major = found.partition(".")[0]
    if not major.isdigit() or int(major) < OLDEST_TRANSFORMERS:
        raise ConfigError(f"found transformers {found}, expected 5 or newer: pip install 'dysharp[torch]'")


def _require(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"found no {name}, expected the extra: pip install 'dysharp[torch]'") from error
