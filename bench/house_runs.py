"""Files that a command runs through on its way to the number, counted in a fresh process.

`runs(root)` traces each of `COMMANDS` in the checkout `root`, from the function of the command until its verb returns: neither the reading of options
nor printing counts. A file counts where a function or a class body of it ran; modules of command and verb are loaded before, so class bodies are
those of modules that are loaded on the way. Kernels run compiled and are not seen.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

COMMANDS = {
    "serve": "serve deepseek-v3 --cluster hw-dgx-h200-x2 --slo tpot=50ms",
    "step, dense": "step llama3-8b --layout tp=2,dp=4,m=4 --cluster hw-dgx-h100 --fresh",
    "compare of two systems": "compare --model S-8 --cluster paper-gh200-nvl32 --systems deepep,dysharp --fresh",
}
VERBS = {"serve": "serving", "step": "training", "compare": "comparison"}
"""Module of `dysharp.api` that has the verb."""


def runs(root: Path) -> dict[str, dict[str, int]]:
    """{command: files, lines, functions, rooms} of the checkout `root`."""
    out = {}
    for name, command in COMMANDS.items():
        own = [sys.executable, __file__, *command.split()]
        # The checkout's own package, whatever is installed.
        done = subprocess.run(own, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command}: found exit code {done.returncode}, expected 0: {done.stderr.strip()[-200:]}")
        out[name] = json.loads(done.stdout.splitlines()[-1])
    return out


class _Trace:
    """Functions of the package that are called from the command `verb` until the function of this name of `dysharp.api` returns."""

    def __init__(self, package: Path, verb: str) -> None:
        self.package, self.verb = f"{package}{os.sep}", verb
        self.seen: set[tuple[str, str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>" or not code.co_filename.startswith(self.package):
            return
        if event == "call" and (self.seen or self._is_verb(frame, "cli")):
            self.seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        elif event == "return" and self._is_verb(frame, "api"):
            sys.setprofile(None)

    def _is_verb(self, frame: FrameType, room: str) -> bool:
        return frame.f_code.co_name == self.verb and Path(frame.f_code.co_filename).parent.name == room


def _trace(args: list[str]) -> dict[str, int]:
    import dysharp
    from dysharp.cli.app import cli

    verb, package = args[0], Path(dysharp.__file__).resolve().parent
    importlib.import_module(f"dysharp.api.{VERBS[verb]}")
    cli.main([verb, "--help"], "dysharp", standalone_mode=False)
    trace = _Trace(package, verb)
    sys.setprofile(trace)
    cli.main(args, "dysharp", standalone_mode=False)
    sys.setprofile(None)
    files = {Path(file) for file, _, _ in trace.seen}
    lines = sum(file.read_text().count("\n") for file in files)
    return {"files": len(files), "lines": lines, "functions": len(trace.seen), "rooms": len({file.relative_to(package).parts[0] for file in files})}


if __name__ == "__main__":
    print(json.dumps(_trace(sys.argv[1:])))
