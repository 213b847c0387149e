"""The replay set: small points of every system whose Traces may change with a new model version only.

`python tests/replay/replay_points.py` writes `digests.json` beside this file, and the file's hash into `versions.csv`. It refuses to change a
digest under the model version that the file was written with, so that no simulated number moves unseen.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from version_record import RECORD, file_text, line_of, read_record, recorded

import dysharp
from dysharp.analysis import MODEL_VERSION
from dysharp.specs import Model
from dysharp.systems import all_systems

STORED = Path(__file__).with_name("digests.json")
MODEL = Model(
    name="replay",
    hidden=2048,
    expert_hidden=512,
    n_experts=16,
    topk=4,
    tokens_per_gpu=48,
    n_matrices=3,
    element_bytes=2,
    gemm_dtype="fp8",
)
PAPER, REAL, RACK, MESH = "paper-gh200-nvl32", "hw-dgx-h100", "hw-gb200-nvl72", "hw-mi300x"


def points() -> Iterator[dict[str, Any]]:
    """Arguments of `dysharp.run`: every system, forward and backward, at both levels, on a paper cluster and on a real one in both forms."""
    for name, system in all_systems().items():
        for direction in ("fwd", "bwd"):
            for fidelity in ("burst", "packet"):
                yield _point(name, PAPER, 4, direction, fidelity)
                yield _point(name, REAL, 4, direction, fidelity)
            if system.has_real_form:
                yield _point(name, REAL, 4, direction, "burst", {"form": "paper"})
                yield _point(name, RACK, 8, direction, "burst")
            if "real" in system.reach.no_switch:
                yield _point(name, MESH, 8, direction, "burst")
                yield _point(name, MESH, 4, direction, "burst", {"form": "paper"})
        yield _point(name, PAPER, 8, "both", "burst")
        if name in ("dysharp", "hub-sharp"):  # enough rows that their AL TLB drops some
            yield _point(name, PAPER, 16, "fwd", "packet") | {"tokens": 128}
        if name == "comet-flux":
            yield _point(name, PAPER, 4, "fwd", "packet", {"slices": 1})
            yield _point(name, PAPER, 8, "both", "burst", {"slices": 1})


def _point(system: str, cluster: str, gpus: int, direction: str, fidelity: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """One point; routing is skewed, so that partial tiles, empty slots and loaded links occur."""
    return {
        "system": system,
        "cluster": cluster,
        "gpus": gpus,
        "tokens": MODEL.tokens_per_gpu,
        "routing": "lognormal:0.65",
        "seed": 7,
        "direction": direction,
        "fidelity": fidelity,
        "options": options or {},
    }


def name_of(point: dict[str, Any]) -> str:
    """The key of a point in `digests.json`."""
    words = [point["system"], point["cluster"], f"{point['gpus']} GPUs", point["direction"], point["fidelity"]]
    return " / ".join([*words, *(f"{key}={value}" for key, value in point["options"].items())])


def _plain_formats(point: dict[str, Any]) -> dict[str, Any]:
    """The formats of the paper form. On hw clusters `run` would take those that the system ships with."""
    chosen = all_systems()[point["system"]]
    names = {} if chosen.ships is None else chosen.ships.formats.get(MODEL.gemm_dtype, {})
    return {f.name: f.default for f in dataclasses.fields(chosen.options) if f.name in names}


def replay(point: dict[str, Any]) -> dict[str, Any]:
    """What must stay: digest of the Trace, layer time, bound, bytes and events; or the one line with which the point is refused."""
    arguments = dict(point)
    arguments["options"] = _plain_formats(point) | point["options"]
    try:
        row = dysharp.run(arguments.pop("system"), model=MODEL, **arguments)
    except dysharp.DysharpError as error:
        return {"refused": str(error)}
    return {
        "digest": row.digest,
        "time_us": row.time_us,
        "bound_us": row.bound_us,
        "up_bytes": sum(row.traffic_bytes["up"].values()),
        "n_events": row.n_events,
    }


def grown(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The stored points of this model version with new ones at the end. Raises ValueError where a stored point moved or is gone."""
    lost = [name for name, value in before.items() if found.get(name) != value]
    if lost:
        raise ValueError(f"found {len(lost)} points moved or gone under model version {MODEL_VERSION}, expected none: {sorted(lost)[:5]}")
    return before | found


def write() -> int:
    """Write the file and its line in the record; 1 and no change where a stored point moved under its model version."""
    found = {name_of(point): replay(point) for point in points()}
    before = json.loads(STORED.read_text())
    if before["model_version"] == MODEL_VERSION:
        try:
            found = grown(before["points"], found)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    line = recorded(MODEL_VERSION, found)
    if line not in [replace(old, note="") for old in read_record(RECORD.read_text())]:
        with RECORD.open("a") as file:
            file.write(line_of(line) + "\n")
    STORED.write_text(file_text(MODEL_VERSION, found))
    return 0


if __name__ == "__main__":
    sys.exit(write())
