"""The public verbs. `import dysharp` re-exports them; see README.md in this folder. Names load when first used."""

from typing import TYPE_CHECKING

from dysharp.base import late_names, loader

if TYPE_CHECKING:
    from dysharp.api.arguments import Slo
    from dysharp.api.comparison import DEFAULT_SYSTEMS, Comparison, compare
    from dysharp.api.emulating import emulate, machine_with_engine, wrap
    from dysharp.api.explaining import explain
    from dysharp.api.network_curve import compare_network, network
    from dysharp.api.planning import plan
    from dysharp.api.recording import capture
    from dysharp.api.serving import Serving, serve
    from dysharp.api.timed import trace
    from dysharp.api.training import step
    from dysharp.api.whole_model import describe
    from dysharp.planning.advice.advise import Advice, advise
    from dysharp.runs import Progress, Step
    from dysharp.runs.run import run

__all__ = [*late_names(__name__)]
__getattr__ = loader(__name__)
