"""Writes the tables of regression values of this folder anew, after a change that moves numbers on purpose."""

from __future__ import annotations

from tests.measured import judgements, outcomes
from tests.measured.checksums import write

if __name__ == "__main__":
    write(outcomes.FILE, outcomes.table(outcomes.chosen(outcomes.packaged())))
    write(judgements.FILE, {name: value for part in judgements.PARTS for name, value in judgements.table(part).items()})
