"""One point in a separate process: reads {point, jobs, parent} (JSON) from stdin and prints {code, row} or {code, over_share} (JSON).

`over_share`: the point fits into the memory of the computer, but not into its share, so it can run alone.
`jobs`: number of such processes that share the memory. `parent`: the process that waits for the Row; this process ends with it.
`code` is `store.code_digest`. Memory and crashes of one point so do not touch another point. All processes share
compiled numba kernels through the cache on disk.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dysharp.errors import DysharpError, OverShare, one_line
from dysharp.experiments.figure import Point
from dysharp.experiments.store import code_digest, point_from
from dysharp.parent import end_with


def row_of(point: Point, jobs: int = 1) -> dict[str, Any]:
    """Simulate a point with its share of the memory. Raises ConfigError for wrong input, SimulationError for a deadlock.

    Raises OverShare for a point that fits into the memory, but not into its share.
    """
    import dysharp
    from dysharp.api.memory import shared_by
    from dysharp.specs.choices import choices_overridden
    from dysharp.systems import all_systems

    all_systems()  # reads the defaults of options now, from the packaged choices, before choices are overridden
    with choices_overridden(dict(point.choices)), shared_by(jobs):
        row = dysharp.run(
            point.system,
            model=point.model,
            cluster=point.cluster,
            gpus=point.gpus,
            tokens=point.tokens,
            routing=point.routing or None,
            direction=point.direction,
            seed=point.seed,
            fidelity=point.fidelity,
            options=dict(point.options),
        )
    return row.to_dict()


def main() -> int:
    """Exit code 0 with an answer on stdout, else one line on stderr."""
    code = code_digest()  # before the covered modules are imported
    try:
        asked = json.load(sys.stdin)
        end_with(asked["parent"])
        answer: dict[str, Any] = {"row": row_of(point_from(asked["point"]), asked["jobs"])}
    except OverShare as error:
        answer = {"over_share": str(error)}
    except DysharpError as error:
        print(one_line(str(error)), file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("out of memory; take fewer tokens or GPUs", file=sys.stderr)
        return 2
    json.dump({"code": code} | answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
