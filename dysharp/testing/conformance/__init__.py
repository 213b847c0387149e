"""One suite for every system, ours or not: legal, complete, honest Programs, whose runs and tensors are what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dysharp.testing.conformance.report import Finding, Report

if TYPE_CHECKING:
    from dysharp.specs import Cluster, Model
    from dysharp.workload import Routing

__all__ = ["Finding", "Report", "conformance"]


def conformance(
    system: str,
    model: Model | None = None,
    cluster: Cluster | None = None,
    routing: Routing | None = None,
    direction: str = "both",
    options: Mapping[str, Any] | None = None,
    rules: Sequence[str] | None = None,
) -> Report:
    """What a registered system does wrong, rule by rule; `print` the Report to read it.

    `model`, `cluster`, `routing`: one layer; None: the small layers of `conformance.layers` (even, skewed, dropped choices, one GPU, and a
    real machine where the system has a real form). `direction`: "fwd", "bwd" or "both"; rules about both passes run with "both".
    `options`: as for `dysharp.run`, without the system's name. `rules`: names of `suite.RULES`; None: all but the slow ones.

    An exception that a rule or the system raises is one failed line. Raises ConfigError for an unknown system, option, rule or direction.
    """
    from dysharp.testing.conformance.suite import run_suite

    return run_suite(system, model, cluster, routing, direction, options, rules)
