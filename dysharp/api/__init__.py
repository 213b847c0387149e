"""The public verbs. `import dysharp` re-exports them; see README.md in this folder."""

from dysharp.api.advice import Advice, advise
from dysharp.api.comparison import DEFAULT_SYSTEMS, Comparison, compare
from dysharp.api.emulation import emulate, machine_with_engine, wrap
from dysharp.api.network_curve import compare_network, network
from dysharp.api.point import run
from dysharp.api.progress import Progress, Step
from dysharp.api.recording import capture
from dysharp.api.timed import trace

__all__ = [
    "DEFAULT_SYSTEMS", "Advice", "Comparison", "Progress", "Step", "advise", "capture", "compare", "compare_network", "emulate",
    "machine_with_engine", "network", "run", "trace", "wrap",
]  # fmt: skip
