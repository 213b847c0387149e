"""Studies: what is finished is kept, whatever ends the run; nothing runs twice; draws; questions in SQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dysharp.base.errors import ConfigError
from dysharp.base.text import csv_text
from dysharp.cli.app import cli
from dysharp.cli.study import _answer_within
from dysharp.figures.studies import study as module
from dysharp.figures.studies import study_folder as folders
from dysharp.figures.studies.study import Draw, latin_hypercube, load_study, run_study
from dysharp.figures.studies.study_folder import JOURNAL, StudyFolder, _json_source
from dysharp.runs.point import Point
from dysharp.runs.store import Store, key_of
from tests.runs.fake_points import fake_row

duckdb = pytest.importorskip("duckdb")

GRID = """
[points]
systems = ["deepep", "dysharp"]
models = ["S-8"]
gpus = 4
tokens = [16, 32]
[points.grid]
"cluster.link_GBps" = [450, 900]
"dysharp.dispatch_window" = [0, 32]
"""
DRAW = """
[points]
systems = ["dysharp"]
models = ["S-8"]
gpus = 4
tokens = 16
[draw]
method = "METHOD"
n = 12
minimize = MINIMIZE
log = ["cluster.link_GBps"]
[draw.range]
"cluster.link_GBps" = [100.0, 1600.0]
"dysharp.dispatch_window" = [4, 256]
"""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    ran: list[Point] = []

    def row(point: Point, jobs: int = 1) -> dict[str, Any]:
        ran.append(point)
        return fake_row(point)

    monkeypatch.setattr(module, "row_of", row)
    return ran


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def put(text: str) -> str:
        (tmp_path / "my.toml").write_text(text)
        return str(tmp_path / "my.toml")

    return put


def test_a_finished_point_is_read_and_not_run(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    study, folder = load_study(write(GRID)), StudyFolder(tmp_path / "f")
    first = run_study(study, folder)
    assert (first.done, first.kept, first.failed) == (12, 0, {})  # the window of dysharp makes no second point of deepep
    again = run_study(study, StudyFolder(tmp_path / "f"))
    assert (again.done, again.kept) == (0, 12)
    assert len(counted) == 12
    found = StudyFolder(tmp_path / "f").connect().sql("select system, count(*), min(time_us) from points group by system order by system").fetchall()
    assert found == [("deepep", 4, 1e5 / 900), ("dysharp", 8, 1e5 / 900)]


def test_columns_tell_points_apart_and_hold_the_row(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    run_study(load_study(write(GRID)), StudyFolder(tmp_path / "f"))
    found = StudyFolder(tmp_path / "f").connect().sql("select cluster, cluster_link_GBps, dispatch_window, path_sm_us, use_up, row from points")
    for cluster, link, window, sm, use, row in found.fetchall():
        assert cluster == "paper-gh200-nvl32"
        assert sm == pytest.approx(1e5 / link + (window or 0) / 10)
        assert use == 0.5
        assert json.loads(row)["waiting_us"]["dispatch"]["span"][31] == 31.0


def test_a_point_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]) -> None:
    def row(point: Point, jobs: int = 1) -> dict[str, Any]:
        if point.system == "deepep":
            raise ConfigError("no")
        return fake_row(point)

    monkeypatch.setattr(module, "row_of", row)
    outcome = run_study(load_study(write(GRID)), StudyFolder(tmp_path / "f"))
    assert outcome.done == 8
    assert set(outcome.failed.values()) == {"no"}


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    with StudyFolder(tmp_path / "f").writing(), pytest.raises(ConfigError, match="another process"), StudyFolder(tmp_path / "f").writing():
        pass


def test_a_cut_line_and_a_part_written_twice_lose_nothing(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    """The two moments of a kill: in the middle of a line, and between the part and the end of its journal."""
    study, folder = load_study(write(GRID)), tmp_path / "f"
    points = study.grid()
    with StudyFolder(folder).writing() as open_folder:
        for point in points[:5]:
            open_folder.put(key_of(point).digest, point, fake_row(point))
        journal = (folder / JOURNAL).read_text()
    (folder / JOURNAL).write_text(journal + journal.splitlines()[0][:100])
    writer = StudyFolder(folder)
    outcome = run_study(study, writer)
    assert (outcome.done, outcome.kept, writer.left_out) == (7, 5, {})
    assert StudyFolder(folder).connect().sql("select count(*), count(distinct key) from points").fetchall() == [(12, 12)]


DAMAGE = [b"{}", b"5", b"null", b'"x"', b"[]", b'{"key": [1]}', b'{"key": null}', b"[" * 60_000, b"\xff", b'{"key": "a", "point": "b"}']


@pytest.mark.parametrize("line", DAMAGE, ids=lambda line: repr(line[:20]))
def test_a_damaged_line_is_left_out_and_told(tmp_path: Path, counted: list[Point], write: Callable[[str], str], line: bytes) -> None:
    file, folder = write(GRID), tmp_path / "f"
    with StudyFolder(folder).writing() as open_folder:
        point = load_study(file).grid()[0]
        open_folder.put(key_of(point).digest, point, fake_row(point))
        journal = (folder / JOURNAL).read_bytes()
    changed = journal.replace(b'"time_us": ', b'"time_us": 9')
    (folder / JOURNAL).write_bytes(line + b"\n" + changed)
    asked = CliRunner().invoke(cli, ["query", "select count(*) as n from points", "--csv", "--folder", str(folder)])
    assert asked.stdout == "n\n1\n", asked.output
    assert "left out 2 damaged lines of journal.jsonl; their points run again" in asked.stderr
    done = CliRunner().invoke(cli, ["study", file, "--json", "--folder", str(folder)])
    assert json.loads(done.stdout)["n_kept"] == 1
    assert "left out 2 damaged lines" in done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize("old", [False, True])
def test_a_damaged_part_is_left_out_and_its_points_run_again(tmp_path: Path, counted: list[Point], write: Callable[[str], str], old: bool) -> None:
    file, folder = write(GRID), tmp_path / "f [s]"
    run_study(load_study(file), StudyFolder(folder))
    (part,) = folder.glob("part-*.parquet")
    whole = part.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        asked = CliRunner().invoke(cli, ["query", "select 1 from points", "--folder", str(folder)])
        assert isinstance(asked.exception, ConfigError)
        assert "found no finished points" in str(asked.exception)
    part.write_bytes(whole[: len(whole) // 2])
    if old:
        part.rename(folder / f"{part.name.rpartition('-')[0]}.parquet")
    writer = StudyFolder(folder)
    assert run_study(load_study(file), writer).done == 12
    assert any("as of a damaged or older part; its points run again" in line for line in writer.left_out)
    assert StudyFolder(folder).connect().sql("select count(*) from points").fetchall() == [(12,)]


@pytest.mark.parametrize("method", ["", "tpe"])
def test_a_question_gets_the_row_of_the_files_that_are_there(tmp_path: Path, counted: list[Point], write: Callable[[str], str], method: str) -> None:
    """Content A, content B, content A again: the third study runs nothing, and the answer is that of A."""
    if method:
        pytest.importorskip("optuna")
    model, folder = tmp_path / "mine.toml", tmp_path / "f"
    one, other = ('base = "S-8"\nname = "mine"\n' + more for more in ("", "topk = 4\n"))
    file = write((DRAW.replace("METHOD", method).replace("MINIMIZE", '"time_us"') if method else GRID).replace('"S-8"', f'"{model}"'))
    keys = []
    for text in (one, other, one):
        model.write_text(text)
        run_study(load_study(file), StudyFolder(folder))
        keys.append(set(StudyFolder(folder).connect().sql("select key from points").fetchall()))
    assert keys[0] == keys[2] != keys[1]
    assert len(counted) == 24
    store = Store(tmp_path / "store")
    point = Point("deepep", str(model), "paper-gh200-nvl32", "uniform", gpus=4, tokens=16)
    for text, us in ((one, 1.0), (other, 2.0), (one, None)):
        model.write_text(text)
        if us:
            store.put(point, fake_row(point) | {"time_us": us})
            time.sleep(0.02)
    assert StudyFolder(store.folder).connect().sql("select time_us from points").fetchall() == [(1.0,)]


def test_a_link_in_a_folder_is_not_written_through(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    study, folder = load_study(write(GRID)), tmp_path / "f"
    folder.mkdir()
    (tmp_path / "victim").write_text("mine")
    (folder / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="expected a folder to write to"):
        run_study(study, StudyFolder(folder))
    (folder / "lock").unlink()
    for name in (JOURNAL, "journal.part.jsonl"):
        (folder / name).symlink_to(tmp_path / "victim")
    assert run_study(study, StudyFolder(folder)).done == 12
    assert (tmp_path / "victim").read_text() == "mine"


FAKE = Path(__file__).parents[1] / "runs" / "fake_points.py"
MANY = GRID.replace("[450, 900]", str([450 + i for i in range(10)]))  # 60 points


def _wait_for(lines: int, journal: Path) -> None:
    until = time.monotonic() + 60
    while not journal.is_file() or journal.read_text().count("\n") < lines:
        assert time.monotonic() < until
        time.sleep(0.02)


def _workers_of(driver: int) -> list[int]:
    """Processes that run points for the process `driver`, the youngest first."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if f"PPid:\t{driver}\n" in (process / "status").read_text() and "spawn_main" in (process / "cmdline").read_text():
                found.append(int(process.name))
    return sorted(found, reverse=True)


def test_a_question_is_answered_while_a_study_writes(tmp_path: Path, write: Callable[[str], str]) -> None:
    """The journal becomes a part between the question's begin and its end: no row is missed, none is counted twice."""
    points = load_study(write(GRID)).grid()
    with StudyFolder(tmp_path / "f").writing() as folder:
        for point in points[:5]:
            folder.put(key_of(point).digest, point, fake_row(point))
        asked = StudyFolder(tmp_path / "f").connect()
        folder.close_part()
        assert asked.sql("select count(*), count(distinct key) from points").fetchall() == [(5, 5)]


def test_a_full_journal_becomes_a_part_and_points_go_on(tmp_path: Path, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every two lines a part; the file of the journal can be read and written by all whom the umask lets, and run by nobody."""
    monkeypatch.setattr(folders, "LINES_PER_PART", 2)
    points = load_study(write(GRID)).grid()[:5]
    with StudyFolder(tmp_path / "f").writing() as folder:
        mask = os.umask(0)
        os.umask(mask)
        assert (tmp_path / "f" / JOURNAL).stat().st_mode & 0o777 == 0o666 & ~mask
        for n, point in enumerate(points, 1):
            folder.put(key_of(point).digest, point, fake_row(point))
            assert len(list((tmp_path / "f").glob("part-*.parquet"))) == n // 2
        assert len((tmp_path / "f" / JOURNAL).read_text().splitlines()) == 1
    assert all(StudyFolder(tmp_path / "f")._known() >= {key_of(point).digest} for point in points)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills by signal")
def test_workers_and_a_driver_that_are_killed_lose_no_finished_point(tmp_path: Path, write: Callable[[str], str]) -> None:
    """A worker is killed with -9, then the driver. Every line of the journal is kept, no point of it runs again, and the rest runs."""
    file, folder, log = write(MANY), tmp_path / "f", tmp_path / "log"
    command = [sys.executable, str(FAKE), file, str(folder), str(log), "0.03", "2"]
    driver = subprocess.Popen(command)
    _wait_for(8, folder / JOURNAL)
    os.kill(_workers_of(driver.pid)[0], signal.SIGKILL)
    _wait_for(25, folder / JOURNAL)
    workers = _workers_of(driver.pid)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.02)  # they end with their driver
    kept = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
    labels = {p.label for p in load_study(file).grid() if key_of(p).digest in {record["key"] for record in kept}}
    before = len(log.read_text().splitlines())
    subprocess.run(command, check=True)
    n = len(load_study(file).grid())
    assert 25 <= len(kept) < n
    parts = duckdb.sql(f"select key, finished from read_parquet('{folder}/part-*.parquet', union_by_name=true)").fetchall()
    assert len(parts) == len({key for key, _ in parts}) == n
    assert {(record["key"], record["finished"]) for record in kept} <= set(parts)
    ran = [line.partition(" ")[2] for line in log.read_text().splitlines()]
    assert not labels & set(ran[before:])
    assert len(set(ran[before:])) == len(ran[before:]) == n - len(kept)


def test_a_point_of_other_files_is_not_kept(tmp_path: Path, write: Callable[[str], str]) -> None:
    """A file that changes while its point runs, or that the worker has in another version."""
    model = tmp_path / "my-model.toml"
    model.write_text(Path(str(files("dysharp.specs"))).joinpath("data/models/S-8.toml").read_text())

    def row(point: Point, jobs: int) -> dict[str, Any]:
        model.write_text(model.read_text() + "# other\n")
        return fake_row(point)

    outcome = run_study(load_study(write(GRID.replace('"S-8"', f'"{model}"'))), StudyFolder(tmp_path / "f"), simulate=row)
    assert outcome.done == 0
    assert all("files of the point changed" in why for why in outcome.failed.values())


def test_a_latin_hypercube_has_one_draw_in_each_part() -> None:
    draw = Draw("latin-hypercube", 50, {"a": [0.0, 1.0], "b": [1.0, 100.0], "tokens": [1, 50]}, log=("b",), seed=3)
    values = latin_hypercube(draw)
    assert sorted(int(v["a"] * 50) for v in values) == list(range(50))
    assert sorted(int(np.log(v["b"]) / np.log(100) * 50) for v in values) == list(range(50))
    assert sorted(v["tokens"] for v in values) == list(range(1, 51))
    assert values == latin_hypercube(draw)


@pytest.mark.parametrize(("method", "minimize"), [("tpe", '"time_us"'), ("nsga2", '["time_us", "cluster_link_GBps"]')])
def test_a_search_continues_where_it_stopped(tmp_path: Path, counted: list[Point], write: Callable[[str], str], method: str, minimize: str) -> None:
    pytest.importorskip("optuna")
    study = load_study(write(DRAW.replace("METHOD", method).replace("MINIMIZE", minimize)))
    first = run_study(study, StudyFolder(tmp_path / "f"))
    again = run_study(study, StudyFolder(tmp_path / "f"))
    assert (first.done, again.done, again.kept) == (12, 0, 12)
    assert len(set(counted)) == len(counted) == 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"tpe"', '"tpa"'), "did you mean"),
        (('minimize = "time_us"', 'minimize = ["time_us", "bound_us"]'), "expected 1 of the columns"),
        (("n = 12", "n = 0"), "at least one"),
        (("[4, 256]", "[256, 4]"), "lowest, highest"),
        (("[4, 256]", "[4, inf]"), "below 1e15"),
        (("n = 12", "n = 1000000000"), "at most 100000"),
        (("n = 12", "n = 12\nseed = -1"), "at least 0"),
        (("n = 12", "n = true"), "draw.n: found True"),
        (('log = ["cluster.', 'log = ["clster.'), r"draw.log: found 'clster.link_GBps'; did you mean \"cluster.link_GBps\""),
        (('"tpe"', '"latin-hypercube"'), "expected 0 of the columns of points for latin-hypercube"),
        (("[points]", "[figur]\n[points]"), r"figur: unknown key"),
        (("[points]", "[other]\n[points]"), r"other: unknown key"),
        (("tokens = 16", 'tokens = 16\noptions = "x"'), "points.options: found 'x', expected a table of options"),
        (("tokens = 16", "tokens = 16\ngrid = 5"), "points.grid: found 5, expected a table of options"),
        (('"dysharp.dispatch_window" =', '"other.window" ='), "option 'other.window'"),
        (("seed", "seed"), ""),
    ],
)
def test_a_wrong_draw_is_named(write: Callable[[str], str], change: tuple[str, str], words: str) -> None:
    text = DRAW.replace("METHOD", "tpe").replace("MINIMIZE", '"time_us"').replace(*change)
    if not words:
        assert load_study(write(text)).draw
        return
    with pytest.raises(ConfigError, match=words):
        load_study(write(text))


def test_questions_in_sql(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    file, folder = write(GRID), str(tmp_path / "f")
    done = CliRunner().invoke(cli, ["study", file, "--folder", folder, "--json"])
    assert json.loads(done.stdout)["n_done"] == 12
    asked = ["query", "select system, count(*) as n from points group by all order by all", "--folder", folder]
    assert CliRunner().invoke(cli, [*asked, "--csv"]).stdout == "system,n\ndeepep,4\ndysharp,8\n"
    assert json.loads(CliRunner().invoke(cli, [*asked, "--json"]).stdout) == [{"system": "deepep", "n": 4}, {"system": "dysharp", "n": 8}]
    assert "deepep" in CliRunner().invoke(cli, asked).stdout
    tokens = ["query", "select count(*) as n from points where tokens is not distinct from tokens_per_gpu", "--csv", "--folder", folder]
    assert CliRunner().invoke(cli, tokens).stdout == "n\n12\n"
    for empty in ("", ";", "/* nothing */"):
        assert "expected a question with an answer" in str(CliRunner().invoke(cli, ["query", empty, "--folder", folder]).exception)
    unknown = CliRunner().invoke(cli, ["query", "select time_uz from points", "--folder", folder]).exception
    assert 'Candidate bindings: "time_us"' in str(unknown)
    assert "\n" not in str(unknown)
    for wrong in (["query", "select nothing from points", "--folder", folder], ["query", "select 1", "--folder", str(tmp_path / "none")]):
        assert isinstance(CliRunner().invoke(cli, wrong).exception, ConfigError)


def test_a_question_reaches_no_file_and_prints_any_value(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    folder, target = str(tmp_path / "f"), tmp_path / "out.csv"
    CliRunner().invoke(cli, ["study", write(GRID.replace("gpus = 4", 'gpus = 4\nrouting = "lognormal:0.65"')), "--folder", folder])
    ask = lambda sql, *more: CliRunner().invoke(cli, ["query", sql, "--folder", folder, *more])  # noqa: E731
    hostile = (f"copy points to '{target}'", f"attach '{target}' as z", f"export database '{target}'", "select * from read_csv('/etc/passwd')")
    for sql in (*hostile, "set enable_external_access = true", f"set log_query_path = '{target}'", "install httpfs", "select * from glob('/*')"):
        assert isinstance(ask(sql).exception, ConfigError), sql
        assert not target.exists()
    values = "select 1.5::decimal(9,2) a, 'nan'::double b, 'x'::blob c, date '2020-01-01' d, [1, 2] e, map {1: 'inf'::double} f"
    plain = {"a": 1.5, "b": None, "c": "b'x'", "d": "2020-01-01", "e": [1, 2], "f": {"1": None}}
    assert json.loads(ask(values, "--json").stdout) == [plain]
    assert ask("summarize points", "--json").exit_code == 0
    assert "query: found 2 columns 'a', expected one of each name in JSON" in str(ask("select 1 as a, 2 as a", "--json").exception)
    assert ask("select chr(27) || '[31m' as e", "--csv").stdout == "e\n\\x1b[31m\n"
    assert ask("select count(*) as n from points where routing = 'lognormal:0.65'", "--csv").stdout == "n\n12\n"
    assert "null" in ask("describe points").stdout
    assert "extra" not in ask("describe points").stdout


def test_an_answer_has_limits(tmp_path: Path, counted: list[Point], write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "f")
    CliRunner().invoke(cli, ["study", write(GRID), "--folder", folder])
    ask = lambda sql, *more: str(CliRunner().invoke(cli, ["query", sql, "--folder", folder, *more]).exception)  # noqa: E731
    assert "found more than 11 lines, expected at most 11" in ask("select key from points", "--rows", "11")
    assert ask("select key from points", "--rows", "12") == "None"
    assert "found no answer after 0.2 s" in ask("select count(*) from range(100000000000)", "--seconds", "0.2")
    monkeypatch.setattr("dysharp.runs.memory.usable_bytes", lambda: 4 << 30)
    assert "Out of Memory Error" in ask("select repeat('x', 3000000000)")
    with pytest.raises(ConfigError, match="Out of Memory Error"):  # of Python, maybe before DuckDB begins
        _answer_within(60.0, _without_memory)


def _without_memory(part: float) -> None:
    raise MemoryError


@pytest.mark.parametrize("text", ["=cmd|'/c calc'!A0", "+1+1|x", "-2+3", "@SUM(1)", "\t=1", "-", "-1.5", "+1e-3", "-inf", "1=1", "a"])
def test_no_text_of_a_csv_is_a_formula(text: str) -> None:
    """A number stays a number, also where it is a text."""
    plain = text in ("-", "-1.5", "+1e-3", "-inf", "1=1", "a")
    assert csv_text(["n", text], [[-1.5, text]]) == "n,{0}\n-1.5,{0}\n".format(text if plain else f"'{text}")


def test_a_question_prints_no_formula(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    CliRunner().invoke(cli, ["study", write(GRID), "--folder", str(tmp_path / "f")])
    asked = CliRunner().invoke(cli, ["query", "select '=1+1' as a, -1 as b", "--csv", "--folder", str(tmp_path / "f")])
    assert asked.stdout == "a,b\n'=1+1,-1\n"


def test_a_warning_of_a_study_is_one_printable_line(tmp_path: Path, write: Callable[[str], str]) -> None:
    text = DRAW.replace("METHOD", "latin-hypercube").replace("minimize = MINIMIZE\n", "").replace("S-8", "\\u001b]0;x\\u0007")
    done = CliRunner().invoke(cli, ["study", write(text), "--folder", str(tmp_path / "f")])
    assert done.exit_code == 1
    assert done.stderr.replace("\n", "").isprintable()
    assert r"\x1b]0;x\x07" in done.stderr


def test_a_full_disk_names_the_folder(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    study, folder = load_study(write(GRID)), StudyFolder(tmp_path / "f")
    point = study.grid()[0]
    with pytest.raises(ConfigError, match="f: cannot be written: No space left on device; finished points are kept"), folder.writing():  # noqa: PT012
        folder._journal = open("/dev/full", "w")  # noqa: SIM115  writing() closes it
        folder.put(key_of(point).digest, point, fake_row(point))


def test_the_overhead_of_a_point_is_small(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    """Everything but the simulation, in time of this process: key, journal, part. The target is 5 ms; a loaded machine gets 10."""
    study = load_study(write(GRID.replace("[450, 900]", str([450 + i for i in range(60)]))))
    folder = StudyFolder(tmp_path / "f")
    run_study(load_study(write(GRID)), folder)
    begin = time.process_time()
    outcome = run_study(study, folder)
    assert (time.process_time() - begin) / outcome.done < 0.010


def test_a_plot_needs_two_objectives(tmp_path: Path, counted: list[Point], write: Callable[[str], str]) -> None:
    pytest.importorskip("optuna")
    picture = tmp_path / "front.svg"
    command = [
        "study",
        write(DRAW.replace("METHOD", "nsga2").replace("MINIMIZE", '["time_us", "cluster_link_GBps"]')),
        "--folder",
        str(tmp_path / "f"),
    ]
    assert CliRunner().invoke(cli, [*command, "--plot", str(picture)]).exit_code == 0
    assert "smaller is better" in picture.read_text()
    refused = CliRunner().invoke(cli, ["study", write(GRID), "--folder", str(tmp_path / "g"), "--plot", str(picture)])
    assert "expected two" in str(refused.exception)


def test_points_of_reproduce_and_of_older_versions_are_queried_as_they_lie(tmp_path: Path) -> None:
    """A record of a Point that this version does not know, and a damaged one, are left out."""
    store = Store(tmp_path / "store")
    points = [Point("deepep", "S-8", "paper-gh200-nvl32,link_GBps=900", "uniform", gpus=4, tokens=n) for n in (16, 32)]
    for point in points:
        store.put(point, fake_row(point))
    store.put(Point("closed-form", "S-8", "paper-gh200-nvl32", ""), {"redundant_share": 0.5})
    old = json.loads(store.path(points[0]).read_text())
    (store.folder / "unknown.json").write_text(json.dumps(old | {"point": old["point"] | {"gone": 1}}))
    (store.folder / "older.json").write_text(json.dumps(old | {"code": "older"}))
    (store.folder / "damaged.json").write_text("{")
    os.utime(store.folder / "older.json", (1, 1))
    asked = [
        "query",
        "select system, cluster_link_GBps, count(*) as n, min(finished) > 1 as newest from points group by all order by n",
        "--json",
        "--folder",
    ]
    done = CliRunner().invoke(cli, [*asked, str(store.folder)])
    assert done.exit_code == 0, done.output
    closed = {"system": "closed-form", "cluster_link_GBps": None, "n": 1, "newest": True}
    assert json.loads(done.stdout) == [closed, {"system": "deepep", "cluster_link_GBps": 900.0, "n": 2, "newest": True}]


def test_a_question_without_a_folder_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = CliRunner().invoke(cli, ["query", "describe points"]).exception
    expected = "query: found no folder 'study', expected one of a study (--folder DIR), or --reproduced for points of reproduce and sweep"
    assert isinstance(asked, ConfigError)
    assert str(asked) == expected


def test_the_cache_of_reproduce_is_queried_by_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    point = Point("deepep", "S-8", "paper-gh200-nvl32", "uniform", gpus=4, tokens=16)
    Store.default().put(point, fake_row(point))
    done = CliRunner().invoke(cli, ["query", "select system from points", "--reproduced", "--csv"])
    assert done.stdout == "system\ndeepep\n"


def test_columns_have_the_type_that_holds_all_their_values(tmp_path: Path) -> None:
    """Whole numbers and fractions make fractions, anything beside a text makes texts, a column without a value is a number."""
    records = [
        {"seed": 1 << 64, "n": 1, "us": 1, "on": True, "mixed": 1, "none": None, "system": "a"},
        {"seed": 2, "n": 2, "us": 2.5, "on": False, "mixed": "x", "none": None, "system": None},
    ]
    source = _json_source(tmp_path / "rows.json", records)
    types = {"seed": "VARCHAR", "n": "BIGINT", "us": "DOUBLE", "on": "BOOLEAN", "mixed": "VARCHAR", "none": "DOUBLE", "system": "VARCHAR"}
    assert source.endswith("columns={" + ", ".join(f"'{name}': '{kind}'" for name, kind in types.items()) + "})")
