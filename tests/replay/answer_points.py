"""Answers of verbs that have no Trace: full floats, which may change with a new model version only.

`python tests/replay/answer_points.py` prints which numbers moved since `answers.json` was written: old, new, percent. With `--write --why TEXT`
it writes the file anew and its hash into `answers.csv`, with TEXT as the reason. It refuses to change an answer under the model version that the
file was written with.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from answer_questions import QUESTIONS, Asked
from version_record import Recorded, file_text, read_record, recorded

import dysharp
from dysharp.analysis import MODEL_VERSION
from dysharp.base.errors import DysharpError

STORED, RECORD = Path(__file__).with_name("answers.json"), Path(__file__).with_name("answers.csv")
CLOSE = 1e-12
"""Relative: the last bits of `exp`, `log` and powers depend on the platform's libm, and those of a sum of floats on the build of NumPy."""
KEPT_POINTS = 2
"""Points or layouts of an answer that are stored whole; of the rest the speed alone."""
WORDS = {
    "sentence", "sentences", "advice", "trust", "launch", "header", "source", "outside", "answer", "warnings", "limits", "not_considered",
    "rejected", "wall_s", "compile_s", "peak_rss_mb", "engine_s", "model_version", "disaggregated", "offload",
}  # fmt: skip
"""Fields of prose, of the computer that ran the question, and newer names of stored fields (`apart`, `swap`): not stored."""

Answer = dict[str, Any]


def _serve(model: str, cluster: str, more: dict[str, Any]) -> Answer:
    layouts = more["layouts"].split(";")
    found = dysharp.serve(model, cluster, **more | {"layouts": layouts}).to_dict()
    front = [[point["layout"], point["users"], point["tokens_per_s_gpu"], point["tpot_ms"], point["ttft_ms"]] for point in found["front"]]
    n_rejected = len(found["rejected"])
    return found | {"best": found["best"][:KEPT_POINTS], "front": front, "n_rejected": n_rejected}


def _step(model: str, cluster: str, more: dict[str, Any]) -> Answer:
    return dysharp.step(model, cluster, **more).to_dict()


def _plan(model: str, cluster: str, more: dict[str, Any]) -> Answer:
    return dysharp.plan(model, cluster=cluster, **more).to_dict()


def _model(model: str, _cluster: str, more: dict[str, Any]) -> Answer:
    found = dysharp.describe(model, **more).to_dict()
    ranks = found["memory"]
    sizes = [[rank["parameters"], rank["allocated"], rank["reserved"]] for rank in ranks]
    return found | {"memory": [*ranks[:1], *ranks[1:][-1:]], "ranks": sizes}


def _advise(model: str, cluster: str, more: dict[str, Any]) -> Answer:
    found = dysharp.advise(model, cluster=cluster, **more).to_dict()
    changes = {f"{one['change']}, {one['system']}": [one["time_us"], one["speedup"]] for one in found["what_if"]}
    return found | {"what_if": changes}


def _collective(system: str, cluster: str, more: dict[str, Any]) -> Answer:
    row = dysharp.run(system, cluster=cluster, **more)
    return {"digest": row.digest, "time_us": row.time_us, "bound_us": row.bound_us, "traffic_bytes": row.traffic_bytes, "n_events": row.n_events}


def _measured(what: str, _cluster: str, _more: dict[str, Any]) -> Answer:
    from dysharp.api.run_validation import validate_serving, validate_training

    if what == "training":
        return {f"{row['family']} {row['id']}": row["predicted"] for row in validate_training().to_dict()["rows"]}
    return {row["id"]: [row["tpot_ms"], row["step_ms"], row["ttft_ms"]] for row in validate_serving().to_dict()["rows"]}


VERBS: dict[str, Callable[[str, str, dict[str, Any]], Answer]] = {
    "serve": _serve, "step": _step, "plan": _plan, "model": _model, "advise": _advise, "collective": _collective, "measured": _measured,
}  # fmt: skip


def name_of(verb: str, asked: Asked) -> str:
    """The key of an answer in `answers.json`."""
    what, cluster, more = asked
    return " / ".join([verb, what, *([cluster] if cluster else []), *(f"{key}={_short(value)}" for key, value in more.items())])


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def questions() -> dict[str, tuple[str, Asked]]:
    """{name: (verb, what is asked)}."""
    return {name_of(verb, asked): (verb, asked) for verb, listed in QUESTIONS.items() for asked in listed}


def answer(verb: str, asked: Asked) -> Answer:
    """{path of a field: number, truth or name}; or the one line with which the question is refused."""
    try:
        return dict(_leaves("", VERBS[verb](*asked)))
    except DysharpError as error:
        return {"refused": str(error)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
    if pairs is None:
        yield path, value
        return
    for key, each in pairs:
        if key not in WORDS:
            yield from _leaves(f"{path}.{key}" if path else str(key), each)


def same(old: Any, new: Any) -> bool:
    """Whether two fields are equal; floats up to `CLOSE`."""
    if isinstance(old, float) or isinstance(new, float):
        return isinstance(old, float | int) and isinstance(new, float | int) and math.isclose(old, new, rel_tol=CLOSE, abs_tol=0.0)
    return bool(old == new)


def moved(before: Answer, now: Answer) -> list[tuple[str, Any, Any]]:
    """(field, old, new) of every field that differs; None where there is none."""
    return [(field, before.get(field), now.get(field)) for field in {**before, **now} if not same(before.get(field), now.get(field))]


def report(before: dict[str, Answer], now: dict[str, Answer]) -> Iterator[str]:
    """A line for each answer that moved or is new, and below it each field: old, new, percent."""
    for name, found in now.items():
        fields = moved(before[name], found) if name in before else []
        if name not in before:
            yield f"{name}: new"
        elif fields:
            yield f"{name}: {len(fields)} of {len(found)} fields moved"
        for field, old, new in fields:
            yield f"  {field}: {old!r} -> {new!r}{_percent(old, new)}"
    yield from (f"{name}: gone" for name in before if name not in now)


def _percent(old: Any, new: Any) -> str:
    numbers = all(isinstance(one, float | int) for one in (old, new)) and old
    return f" ({100 * (new / old - 1):+.3g} %)" if numbers else ""


def kept(before: dict[str, Answer], now: dict[str, Answer]) -> dict[str, Answer]:
    """Stored answers of this model version with new ones at the end. Raises ValueError where a stored answer moved or is gone."""
    lost = [name for name, old in before.items() if name not in now or moved(old, now[name])]
    if lost:
        raise ValueError(f"found {len(lost)} answers moved or gone under model version {MODEL_VERSION}, expected none: a move needs a new version")
    return before | {name: found for name, found in now.items() if name not in before}


def line_of(record: Recorded) -> str:
    """The line as it stands in `answers.csv`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow((record.version, record.points, record.sha256, record.note))
    return text.getvalue()


def write(before: dict[str, Any], now: dict[str, Answer], why: str) -> None:
    """Write the file and its line in the record. Raises ValueError where an answer moved under its version, and without a reason."""
    found = kept(before["points"], now) if before["model_version"] == MODEL_VERSION else now
    line, lines = recorded(MODEL_VERSION, found), read_record(RECORD.read_text())
    if (line.version, line.sha256) not in [(old.version, old.sha256) for old in lines]:
        if not why.strip():
            raise ValueError("--why: found none, expected which answers moved or are new, and why")
        with RECORD.open("a") as file:
            file.write(line_of(Recorded(line.version, line.points, line.sha256, " ".join(why.split()))))
    STORED.write_text(file_text(MODEL_VERSION, found))


def main(words: list[str] | None = None) -> int:
    """0 if no answer moved or the file was written, else 1."""
    parser = argparse.ArgumentParser(description="Answers that moved since answers.json was written.")
    parser.add_argument("--write", action="store_true", help="write answers.json anew, and its line in answers.csv")
    parser.add_argument("--why", default="", help="what moved or is new, and why")
    asked = parser.parse_args(words)
    before = json.loads(STORED.read_text())
    now = {name: answer(*question) for name, question in questions().items()}
    lines = list(report(before["points"], now))
    print("\n".join([*lines, f"{len(now)} answers"]))
    if not asked.write:
        return 1 if lines else 0
    try:
        write(before, now, asked.why)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
