"""Runs points, each as a `dysharp run` process of its own, and keeps what is finished: killed at any moment, nothing is repeated."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dysharp.errors import ConfigError
from dysharp.experiments.figure import Point


@cache
def _code_digest() -> str:
    """What a result depends on besides its point: every source of the package and every packaged number."""
    h = hashlib.blake2b(digest_size=8)
    package = Path(str(files("dysharp")))
    for path in sorted([*package.rglob("*.py"), *package.joinpath("specs", "data").rglob("*.toml")]):
        if not {"cli", "experiments", "reports", "testing", "oracle"} & set(path.relative_to(package).parts):
            h.update(path.read_bytes())
    return h.hexdigest()


@dataclass(frozen=True, slots=True)
class Store:
    """A folder with one JSON file per finished point, named by a digest of the point and of the code."""

    folder: Path

    @classmethod
    def default(cls) -> Store:
        cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return cls(Path(cache_home) / "dysharp" / "store")

    def path(self, point: Point) -> Path:
        text = json.dumps([asdict(point), _code_digest()], sort_keys=True)
        return self.folder / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.json"

    def get(self, point: Point) -> dict[str, Any] | None:
        """The Row of a finished point, None if there is none (or an unreadable one)."""
        try:
            row = json.loads(self.path(point).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return row if isinstance(row, dict) else None

    def put(self, point: Point, row: dict[str, Any]) -> None:
        """Write to a temporary name, then rename: a reader sees all of it or nothing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.path(point).with_suffix(f".part{os.getpid()}")
            part.write_text(json.dumps(row), encoding="utf-8")
            part.replace(self.path(point))
        except OSError as error:
            raise ConfigError(f"store {self.folder}: {error.strerror}, expected a folder to write to") from None


def run_point(point: Point) -> dict[str, Any]:
    """The Row of one point from a fresh process (memory and crashes stay there). Raises ConfigError with its one-line message."""
    done = subprocess.run([sys.executable, "-m", "dysharp", *point.command()], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise ConfigError(f"{point.system} on {point.model}: {lines[-1].removeprefix('dysharp: error: ')}")
    return dict(json.loads(done.stdout))


def run_points(
    points: Iterable[Point], store: Store, jobs: int = 1, progress: Callable[[int, int, str], None] | None = None
) -> tuple[dict[Point, dict[str, Any]], dict[Point, str]]:
    """Rows of all points, from the store where it has them: ({point: row}, {point: why it failed}). `progress(done, total, what)`."""
    todo, rows, failed = [], {}, {}
    wanted = list(dict.fromkeys(points))
    for point in wanted:
        row = store.get(point)
        if row is None:
            todo.append(point)
        else:
            rows[point] = row
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        futures = {pool.submit(run_point, p): p for p in todo}
        try:
            for future in as_completed(futures):
                point = futures[future]
                try:
                    rows[point] = future.result()
                    store.put(point, rows[point])
                except ConfigError as error:
                    failed[point] = str(error)
                if progress:
                    progress(len(rows) + len(failed), len(wanted), f"{point.system} {point.model}")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {p: rows[p] for p in wanted if p in rows}, failed
