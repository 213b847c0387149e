"""How a measured program ran: its regime.

Two regimes of one kernel differ by tens of microseconds. A constant that is fitted to both hides the difference, so
tables show each regime.

| regime | the GPU at the start | what a time contains |
|---|---|---|
| CUDA graph | replays of one graph | all kernels of the graph and their gaps |
| kernel times | busy | kernels alone, by a profiler; no gaps |
| chained calls | busy with the call before | calls of a loop without a wait of the host |
| cached handle | busy with the call before | as chained calls; counts are known, so the host does not wait for them |
| drained GPU | idle: the host has waited for it, and all GPUs for each other | one call with its first launches |
| torch call | not stated | a call of a library with the host's part |
| not stated | not stated | not stated |
"""

from dysharp.measured.measurements import TABLES, Measurement

UNKNOWN = "not stated"


def regime_of(m: Measurement) -> str:
    """The regime of a measurement, by the rules of `tables.toml` on its protocol, its keys `timing` and `measure`, its system and its source."""
    return next((str(rule["is"]) for rule in TABLES["regime"] if m.says(rule["where"])), UNKNOWN)
