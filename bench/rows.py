"""Coverage of the packaged rows: `python bench/rows.py` prints every kind with its rows, how many are predicted, by which family, and why not.

Training and serving rows are counted by their own readers: a training row is predicted by its step time or memory, a serving row by its layout.
"""

import collections

from dysharp.measured.family import Parsed, classify
from dysharp.measured.measurements import read_calls, read_measurements, read_operators
from dysharp.measured.serving.setting import ServingRow
from dysharp.measured.training.setting import TrainingRow


def table() -> list[str]:
    """Lines `kind | rows | predicted | families | why not`, kinds with most rows first."""
    found = classify(read_measurements() + read_operators() + read_calls())
    rows, known = collections.Counter[str](), collections.Counter[str]()
    families, reasons = collections.defaultdict[str, set[str]](set), collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    for entry in found.entries:
        kind = entry.measurement.kind
        rows[kind] += 1
        if isinstance(entry, Parsed):
            known[kind] += 1
            families[kind].add(entry.family.name)
        else:
            reasons[kind][entry.reason] += 1
    lines = [f"{'kind':26} {'rows':>5} {'predicted':>9}  families; why not"]
    for kind, count in rows.most_common():
        why = ", ".join(f"{n} {reason}" for reason, n in reasons[kind].most_common())
        lines.append(f"{kind:26} {count:5} {known[kind]:9}  {', '.join(sorted(families[kind])) or '-'}; {why or '-'}")
    lines.append(f"{'all':26} {sum(rows.values()):5} {sum(known.values()):9}")
    return [*lines, f"training rows: {len(TrainingRow.read())}; serving rows: {len(ServingRow.read())} (dysharp validate prints their families)"]


if __name__ == "__main__":
    print("\n".join(table()))
