"""A training step of DeepSeek-V3 under nine systems: seconds from an empty store and from a full one. `python bench/steps.py [GPUS]`.

Every run is a fresh process with compiled kernels (a first one compiles them). CPU seconds hold on a shared machine; half of them is the least
wall time on two cores.
"""

import json
import subprocess
import sys
import tempfile

SYSTEMS = "dysharp,deepep,comet,nvls,fusion-only,fastermoe,tutel,ccfuser,ideal"
STAGES = "Et*4|(t*4|)*13t*3|t*2mL"
RUN = """
import json, resource, sys, time
begin = time.perf_counter()
import dysharp
from dysharp.runs.kept import rows_kept_in
folder, layout, systems = sys.argv[1:]
with rows_kept_in(folder) as kept:
    done = dysharp.step("deepseek-v3", layout=layout, schedule="dualpipe", recompute=["full"], precision="bf16-moments", systems=systems.split(","))
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu = sum(one.ru_utime + one.ru_stime for one in used)
steps = {one.system: round(one.step_us / 1e3, 1) for one in done.steps}
memory = max(one.ru_maxrss for one in used) / 1e3
print(json.dumps({"read": kept.read, "ran": kept.ran, "cpu_s": cpu, "wall_s": time.perf_counter() - begin, "peak_mb": memory, "steps_ms": steps}))
"""


def run(folder: str, layout: str, systems: str = SYSTEMS) -> str:
    """One run in a fresh process: what it printed."""
    words = [sys.executable, "-c", RUN, folder, layout, systems]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return "  ".join(f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items())


def main() -> None:
    """Print one line for each run."""
    gpus = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    layout = f"pp=16,ep=32,gpus={gpus},m=64,stages={STAGES}"
    with tempfile.TemporaryDirectory() as folder:
        run(folder + "/compile", "pp=16,ep=32,m=64,mbs=1,stages=" + STAGES, "ideal")
        for store in ("empty", "full"):
            print(f"{gpus} GPUs, {store} store:", run(folder + "/rows", layout), flush=True)


if __name__ == "__main__":
    main()
