"""A search that is killed goes on where it was, and finds what an undisturbed one finds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dysharp.planning.cost import Coster, machine_of
from dysharp.planning.plan import training_recipe_for
from dysharp.planning.search import journal_of, search
from dysharp.planning.space import Space, Task
from dysharp.specs import load_cluster, load_whole

SLOW = """
import sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_journal import coster
from dysharp.planning import search as journal
from dysharp.planning.cost import Coster
journal.PART = 3
fast = Coster.cost
def slow(self, number):
    time.sleep(0.2)
    return fast(self, number)
Coster.cost = slow
one = coster()
journal.search(one, 2, journal.journal_of(Path({store!r}), one))
"""


def coster() -> Coster:
    machine, model = machine_of(load_cluster("paper-ascend-910b")), load_whole("deepseek-v2-lite")
    task = Task(model, 16, 64, training_recipe=training_recipe_for(model, machine))
    return Coster(task, machine, Space(tp=(1, 2, 4), pp=(1, 2, 4), vpp=(1, 2), ep=(1, 2, 4, 8), micro_batch=(1, 2)))


@pytest.mark.slow
def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    script = SLOW.format(folder=str(Path(__file__).parent), store=str(tmp_path))
    running = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("*.json"))) < 2 and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    assert running.returncode == -signal.SIGKILL, "it was killed before its end"
    one = coster()
    known = journal_of(tmp_path, one)
    assert known.read >= 6
    undisturbed: dict[int, tuple[float, float]] = {}
    assert search(one, 2, known).best == search(coster(), 2, undisturbed).best
    assert set(known) == set(undisturbed)
    assert len(undisturbed) > known.read


def test_another_question_has_another_journal(tmp_path: Path) -> None:
    one = coster()
    known = journal_of(tmp_path, one)
    search(one, 2, known)
    known.flush()
    assert journal_of(tmp_path, coster()).read == len(known)
    other = Coster(Task(one.task.model, 16, 128), one.machine, one.space)
    assert journal_of(tmp_path, other).read == 0


def test_a_damaged_part_is_costed_again(tmp_path: Path) -> None:
    one = coster()
    known = journal_of(tmp_path, one)
    search(one, 2, known)
    known.flush()
    for part in tmp_path.glob("*.json"):
        part.write_text(part.read_text()[:-40])
    assert journal_of(tmp_path, one).read == 0


@pytest.mark.parametrize("field", ["spread", "sequence"])
def test_every_field_of_a_task_is_in_the_key(field: str, tmp_path: Path) -> None:
    from dataclasses import replace

    one = coster()
    known = journal_of(tmp_path, one)
    known[0] = (1.0, 2.0)
    known.flush()
    task = replace(one.task, **{field: {"spread": 0.1, "sequence": 8192}[field]})
    assert journal_of(tmp_path, Coster(task, one.machine, one.space)).read == 0
