"""Exhaustive check of the protocol: a tiny machine made of the blocks, explored under every order of events.

`check(config) -> Report` is the verb; `Config` says which machine, `CONFIGS` names the ones of the tests. Source of the semantics:
docs/design/0004-functional-machine.md.
"""

from __future__ import annotations

from dysharp.protocol.checker.check import Report, check
from dysharp.protocol.checker.config import CONFIGS, Config, Token
from dysharp.protocol.checker.explore import Found, explore

__all__ = ["CONFIGS", "Config", "Found", "Report", "Token", "check", "explore"]
