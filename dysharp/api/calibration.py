"""The verb `calibrate`: a cluster file from its owner's measurements."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Unpack

from dysharp.api.arguments import CalibrateArgs
from dysharp.api.learning import WHOLE, Learning, Row, cluster_text, learning, rows_in, toml_of
from dysharp.api.validation import check_values
from dysharp.base import AnyPath, ByName, ConfigError, Rows, check_destination, frozen, nearest, write_text
from dysharp.base.text import table
from dysharp.measured.cluster_fit import ClusterFit, fit_cluster
from dysharp.measured.formats import Given, rows_text
from dysharp.measured.measurements import Measurement, measurements_from_csv
from dysharp.runs import parse_set, takes
from dysharp.specs import list_clusters, load_cluster
from dysharp.specs.fitted import fitted

Files = AnyPath | Sequence[AnyPath]
EXPECTED = (
    "expected rows as in docs/measurements.md: several sizes of several kinds, such as ep_dispatch, ep_combine, gemm_dense, grouped_gemm_mlp, "
    "moe_layer, nccl_all_reduce, nccl_all_gather, nccl_reduce_scatter, nccl_alltoall"
)


@frozen
class Calibration:
    """A fit, and the cluster file that holds it."""

    fit: ClusterFit
    path: str
    name: str

    @property
    def constants(self) -> Rows:
        """The fitted constants, before and after."""
        return [{"name": name, "before": self.fit.before[name], "after": value} for name, value in self.fit.fitted.items()]

    def __str__(self) -> str:
        """Errors before and after, and the file."""
        rows = [(e.family, str(e.before.n), f"{e.before.median_ape:.1f}", f"{e.after.median_ape:.1f}") for e in self.fit.errors]
        return table(("family", "rows", "median error %, before", "after"), rows) + f"\nwritten: {self.path} (cluster {self.name})"

    def __repr__(self) -> str:
        return f"<Calibration {self.path}: {len(self.fit.fitted)} constants fitted; print() shows the errors, to_dict() all>"

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        f = self.fit
        return {
            "path": self.path,
            "cluster": self.name,
            "n_rows": f.n_rows,
            "constants": self.constants,
            "refused": dict(f.refused),
            "errors": [asdict(row) for row in f.errors],
            "skipped": [{"id": m.id, "kind": m.kind, "reason": why} for m, why in f.skipped],
        }


@takes(CalibrateArgs)
def calibrate(data: Files, out: AnyPath, **request: Unpack[CalibrateArgs]) -> Calibration | Learning:
    """Fit the constants that the measurements of files determine, and write a cluster TOML with them to `out`.

    `data`: files with rows of kernels and collectives (docs/measurements.md), or of whole runs of training or serving, as CSV or as logs. With a run
    or a whole layer among them, or where kernels fix no constant, all rows are votes about named costs.

    Raises `ConfigError` for wrong input and when the measurements determine nothing.
    """
    base, begun = request["base"], request["begun"]
    path = Path(out)
    check_destination(path, ".toml")
    called = _name(request["name"] or path.stem)
    if called in list_clusters():
        raise ConfigError(f"calibrate: name: found {called!r}, a packaged cluster; expected a name of its own")
    shown = ", ".join(_shown(Path(file).name) for file in _files(data))
    rows = rows_of_files(data, base, request["said"])
    machine, fit = load_cluster(base), None
    if all(isinstance(row, Measurement) and row.kind.replace("_", "-") not in WHOLE for row in rows):
        if begun is not None:
            begun()
        packaged = {name: replace(constant, value=machine.fitted[name]) for name, constant in fitted().items()}
        fit = fit_cluster([row for row in rows if isinstance(row, Measurement)], machine.gpu, packaged)
        if not fit.n_rows:
            first = {reason: row.id for row, reason in reversed(fit.skipped)}  # one row of each reason
            every = "; ".join(f"{row}: {reason}" for reason, row in reversed(first.items()))
            raise ConfigError(f"{shown}: found no row that is predicted on {machine.gpu} ({every}), {EXPECTED}")
    if fit is None or not fit.fitted:  # kernels that fix no constant are votes, too
        learned, machine = learning(rows, machine, str(path), called)
        write_text(path, toml_of(learned, machine, base, shown))
        return learned
    write_text(path, _toml(fit, called, base, shown))
    return Calibration(fit, str(path), called)


def _check_base(base: str) -> None:
    if base not in list_clusters() or not load_cluster(base).gpu:
        hw = [known for known in list_clusters() if load_cluster(known).gpu]
        raise ConfigError(f"calibrate: base: found {base[:60]!r}, expected a packaged hw cluster{nearest(base, hw)}")


def _files(data: Files) -> list[AnyPath]:
    return [data] if isinstance(data, str | os.PathLike) else list(data)


def rows_of_files(data: Files, base: str, said: Sequence[str]) -> list[Row]:
    """Rows of all files; of several, each name begins with its file. A log that names no GPU is of the machine `base`. Raises `ConfigError`."""
    _check_base(base)
    files, rows, given = _files(data), list[Row](), parse_set(tuple(said))
    if len({os.path.realpath(file) for file in files}) < len(files):
        raise ConfigError("calibrate: found a file twice, expected each file once: its rows would count as other rows")
    known = [Given(os.fspath(file), {}).known if given and len(files) > 1 else () for file in files]
    for place, file in enumerate(files):
        own = {name: value for name, value in given.items() if name in known[place] or not any(name in names for names in known)}
        text, where = rows_text(Given(os.fspath(file), own, load_cluster(base).gpu)), os.fspath(file)
        found: Sequence[Row] | None = rows_in(text, where)
        if found is None:
            found = measurements_from_csv(text, where)
            check_values(found, where)
        if not found:
            raise ConfigError(f"{where}: found a header and no rows, {EXPECTED}")
        name = f"{_shown(Path(file).stem)}-{place}/" if len(files) > 1 else ""
        rows += [_renamed(row, name) for row in found] if name else found
    return rows


def _renamed(row: Row, before: str) -> Row:
    """A row whose name begins with `before`."""
    name = f"{before}{row.id}"
    return replace(row, id=name) if isinstance(row, Measurement) else replace(row, texts=row.texts | {"id": name})


def _name(text: str) -> str:
    """Kept to what a cluster may be called."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._+-") else "-" for c in text).lstrip("._+-")[:128] or "calibrated"


def _shown(data: str) -> str:
    return "".join(c if c.isprintable() and c not in '"\\' else "_" for c in data)[:100]


def _toml(fit: ClusterFit, name: str, base: str, data: str) -> str:
    every, machine = fit.errors[-1], replace(load_cluster(base), constants=tuple(fit.fitted.items()))
    text = f"{base}, calibrated on {fit.n_rows} rows of {_shown(data)}"
    errors = f"median error {every.before.median_ape:.1f} % before, {every.after.median_ape:.1f} % after"
    body = cluster_text(base, name, machine, text, {key: f"packaged: {value:g}" for key, value in fit.before.items()})
    return f"# {text}: {errors}. Constants that the rows do not\n# determine keep their packaged values. Written by dysharp calibrate.\n{body}"
