"""One suite of rules for every system, packaged or from outside: Programs, runs and tensors are legal and complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dysharp.base import AnyMapping
from dysharp.testing.conformance.rule import Finding, Report

if TYPE_CHECKING:
    from dysharp.specs import Cluster, Model
    from dysharp.workload import Routing


def conformance(
    system: str, model: Model | None = None, cluster: Cluster | None = None, routing: Routing | None = None, direction: str = "both",
    options: AnyMapping | None = None, rules: Sequence[str] | None = None,
) -> Report:  # fmt: skip
    """The faults of a registered system, rule by rule. `print` shows the Report.

    | argument | meaning |
    |---|---|
    | `model`, `cluster`, `routing` | one layer; None: the small layers of `conformance.layers` |
    | `direction` | "fwd", "bwd" or "both"; rules about both passes run with "both" only |
    | `options` | options as for `dysharp.run`, without the name of the system |
    | `rules` | names of rules in `suite.RULES`; None: all rules but the slow rules |

    The Report is true if at least one rule besides "legal" ran and no rule failed. Rules that the direction or the options leave out are listed as
    not run. An exception in a rule or in the system is one fault. Raises ConfigError for an unknown system, option, rule or direction.
    """
    from dysharp.testing.conformance.suite import run_suite

    return run_suite(system, model, cluster, routing, direction, options, rules)
