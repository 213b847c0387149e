"""Compare expert-parallel communication systems, with and without in-switch computing, on real models and real routing.

Modelled: one MoE layer on the GPUs of one NVLink domain, some systems also on several; size, memory and steps of whole models; serving.

| name | does |
|---|---|
| `run`, `compare`, `advise` | simulate one system; several on one workload; all that run on a machine today, ranked |
| `step` | one training step of a whole model under a layout and a pipeline schedule |
| `plan` | layouts of a whole model that train fastest on N GPUs |
| `serve` | layouts of a whole model that answers requests: tokens per second, TTFT, TPOT |
| `emulate`, `wrap`, `Machine` | send real tensors through a modelled machine: a drawn layer; a Hugging Face block; NumPy arrays |
| `explain` | a profile of a real run beside what it could be |
| `trace` | when a run did what: every train and every GEMM, as a file for Perfetto |
| `describe` | parameters, FLOPs and training memory of a whole model |
| `network`, `compare_network` | latency of a switch against load, flit by flit; the same beside recorded curves |
| `load_model`, `load_whole`, `load_cluster`, `make_routing`, `Slo` | inputs: a packaged name, a file, a distribution, limits of `serve` |
| `capture`, `save_trace` | record the routing of a model; write it to a file |

`help(dysharp.run)` lists arguments, units and errors. Results print as a short table; `to_dict()` has all numbers.
`dysharp.functional.runtime` issues single instructions without a system, for developers of kernels.
Names load when first used, so that `import dysharp` is quick.
"""

from typing import TYPE_CHECKING

from dysharp.base import late_names, loader

if TYPE_CHECKING:
    from dysharp import errors
    from dysharp.api import Slo, advise, capture, compare, compare_network, describe, emulate, explain, network, plan, run, serve, step, trace, wrap
    from dysharp.api import machine_with_engine as Machine
    from dysharp.specs import load_cluster, load_model, load_whole
    from dysharp.workload import make_routing, save_trace

__version__ = "0.2.0"
__all__ = ["__version__", *late_names(__name__)]
__getattr__ = loader(__name__)


def __dir__() -> list[str]:
    return sorted(__all__)
