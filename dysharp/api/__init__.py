"""The public verbs. `import dysharp` re-exports them; see README.md in this folder."""

from dysharp.api.comparison import DEFAULT_SYSTEMS, Comparison, compare
from dysharp.api.emulation import emulate, machine_with_engine, wrap
from dysharp.api.point import run
from dysharp.api.progress import Progress, Step

__all__ = ["DEFAULT_SYSTEMS", "Comparison", "Progress", "Step", "compare", "emulate", "machine_with_engine", "run", "wrap"]
