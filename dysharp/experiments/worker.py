"""One point in a process of its own: reads the point (JSON) from stdin, prints {code, row} (JSON), `code` as in `store.code_digest`.

A process a point keeps its memory and its crashes to itself; compiled kernels are shared through the cache on disk.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dysharp.errors import DysharpError, one_line
from dysharp.experiments.figure import Point
from dysharp.experiments.store import code_digest, point_from


def row_of(point: Point) -> dict[str, Any]:
    """Simulate a point. Raises ConfigError for wrong input, SimulationError for a deadlock."""
    import dysharp
    from dysharp.specs.choices import choices_overridden
    from dysharp.systems import all_systems

    all_systems()  # Option defaults are read here, from the packaged choices, and never from overridden ones
    with choices_overridden(dict(point.choices)):
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
    """Exit code 0 with a Row on stdout, else one line on stderr."""
    code = code_digest()  # before the modules that it covers are imported
    try:
        row = row_of(point_from(json.load(sys.stdin)))
    except DysharpError as error:
        print(one_line(str(error)), file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("out of memory; take fewer tokens or GPUs", file=sys.stderr)
        return 2
    json.dump({"code": code, "row": row}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
