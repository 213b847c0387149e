"""Exhaustive check of the protocol: a tiny machine of all blocks, explored under every order of events.

`check(config) -> Report` runs the check. `Config` describes a machine. `CONFIGS` names the machines of the tests.
Source of the semantics: docs/design/0004-functional-machine.md.
"""

from tests.protocol.checker.check import Report, check
from tests.protocol.checker.config import CONFIGS, Config, Token
from tests.protocol.checker.explore import Explored, explore

__all__ = ["CONFIGS", "Config", "Explored", "Report", "Token", "check", "explore"]
