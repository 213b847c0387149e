"""The CSV reader: what it takes, and what it refuses in one line."""

from __future__ import annotations

import pytest

from dysharp.base.errors import ConfigError
from dysharp.measured.family import family_of
from dysharp.measured.measurements import measurements_from_csv
from tests.measured.csv_lines import GEMM, HEADER, line, read


def test_a_row_is_read():
    (row,) = read(line())
    assert (row.id, row.value, row.unit, row.config["m"]) == ("a-1", 43.0, "us", 1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.csv: found an empty file, expected the header id,kind"),
        (f"{HEADER},colour\n", r"m.csv: header: found unknown column .colour.*expected one of"),
        ("id,kind,system,hardware,config_json,metric,value,units,source\n", 'header: found unknown column .units.; did you mean "unit"'),
        ("id,kind,system,hardware,config_json,metric,value,unit\n", "header: found column source 0 times"),
        (f"{HEADER}\na,b,c\n", "m.csv: row 1: found 3 columns, expected 9"),
        (f"{HEADER}\n{line(value='nan')}\n", "m.csv: row 1: column value: found 'nan', expected a finite number of at least 0"),
        (f"{HEADER}\n{line()}\n{line('a-2', value=-1)}\n", "m.csv: row 2: column value: found '-1', expected a finite"),
        (f"{HEADER}\n{line(value='fast')}\n", "row 1: column value: found 'fast', expected a number"),
        (f"{HEADER}\n{line(value=0)}\n", "row 1: column value: found 0, expected more than 0 us"),
        (f"{HEADER}\n{line(unit='s')}\n", "row 1: column unit: found 's' for metric 'latency', expected us or ms"),
        (f"{HEADER}\n{line(unit='GB/s')}\n", "row 1: column unit: found 'GB/s' for metric 'latency', expected us or ms"),
        (f"{HEADER}\n{line(config='[1]')}\n", r"row 1: column config_json: found \[1\], expected a JSON object"),
        (f"{HEADER}\n{line(config='{')}\n", "row 1: column config_json: malformed JSON: Expecting property name"),
        (f"{HEADER}\n{line(config=chr(123) + chr(34) + 'm' + chr(34) + ': NaN}')}\n", "column config_json: .*found NaN, expected a number"),
        (f"{HEADER}\n{line(config=GEMM | {'m': -8})}\n", "row 1: column config_json: 'm': found -8, expected a finite number of at least 0"),
        (f"{HEADER}\n{line()}\n{line()}\n", "row 2: column id: found 'a-1' again, expected each id once .first in row 1"),
        (f"{HEADER}\n{line('')}\n", "row 1: column id: found nothing, expected a text"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        measurements_from_csv(text, "m.csv")
    assert "\n" not in str(error.value)


def test_a_statement_may_be_text():
    (row,) = read(line(kind="nvlink_fact", metric="nvls_wire_bytes", value="send S/N", unit="-"))
    assert row.value is None
    assert family_of(row) is None
