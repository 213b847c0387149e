"""When a run did what: every train of a link, every GEMM, the way of single tokens. Written for Perfetto or drawn."""

from dysharp.analysis.timeline.record import Recording, record
from dysharp.analysis.timeline.tracks import Timeline, Window, make_timeline
