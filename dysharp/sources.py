"""A digest of the package's own sources and data, so that a kept result is never one of other code."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

# Folders whose code changes no Row: their code requests, draws or checks points.
_NOT_IN_ROWS = {"cli", "experiments", "reports", "testing", "oracle"}


@cache
def code_digest() -> str:
    """Digest of everything but the point that a Row depends on: all sources and all data of the package, as this process first saw them."""
    return _digest()


def sources_changed() -> bool:
    """Whether the package was edited since this process took its digest."""
    return _digest() != code_digest()


def _digest() -> str:
    h = hashlib.blake2b(digest_size=8)
    package = Path(str(files("dysharp")))
    for path in sorted(p for ending in ("py", "toml", "npz") for p in package.rglob(f"*.{ending}")):
        if not _NOT_IN_ROWS & set(path.relative_to(package).parts):
            h.update(path.read_bytes())
    return h.hexdigest()
