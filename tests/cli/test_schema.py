"""`--json-schema` describes what `--json` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.base.version import MODEL_VERSION
from dysharp.cli.app import cli
from tests.profiles.made import run_of, write

KINDS = {"string": str, "number": (int, float), "integer": int, "object": dict, "array": (list, tuple), "null": type(None), "boolean": bool}


def _check(value: Any, schema: dict[str, Any], where: str = "", whole: dict[str, Any] | None = None) -> None:
    """The parts of JSON Schema that are used here. `whole`: has the definitions."""
    whole = whole or schema
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = next(s for s in schema["anyOf"] if "type" not in s or isinstance(value, KINDS[s["type"]]))
    if "type" in schema:
        assert isinstance(value, KINDS[schema["type"]]), where
    if schema.get("type") == "object" and "properties" in schema:
        assert set(schema["required"]) <= set(value) <= set(schema["properties"]), where
        for name, item in value.items():
            _check(item, schema["properties"][name], f"{where}.{name}", whole)
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        for name, item in value.items():
            _check(item, schema["additionalProperties"], f"{where}.{name}", whole)
    elif schema.get("type") == "array" and "items" in schema:
        for item in value:
            _check(item, schema["items"], f"{where}[]", whole)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_schema_fits_the_output(command: str) -> None:
    schema = json.loads(CliRunner().invoke(cli, [command, "--json-schema"]).stdout)
    done = dysharp.compare(["deepep", "ideal"], gpus=4, tokens=16)
    versioned = {"model_version": MODEL_VERSION}  # the command line adds it where an answer has none
    _check(json.loads(json.dumps(versioned | done.to_dict() if command == "compare" else done.rows[0].to_dict())), schema)


@pytest.mark.parametrize(
    "words",
    [
        "run deepep --gpus 2 --tokens 8 --finite",
        "compare --systems deepep,ideal --gpus 2 --tokens 8 --finite",
        "compare --systems deepep,nccl-ep --cluster hw-dgx-h100 --tokens 8",
    ],
)
def test_the_schema_has_every_field_that_is_printed(words: str) -> None:
    schema = json.loads(CliRunner().invoke(cli, [words.partition(" ")[0], "--json-schema"]).stdout)
    _check(json.loads(CliRunner().invoke(cli, [*words.split(), "--json"]).stdout), schema)


def test_the_schema_of_explain_fits_its_output(tmp_path: Path) -> None:
    schema = json.loads(CliRunner().invoke(cli, ["explain", "--json-schema"]).stdout)
    done = dysharp.explain(*write(tmp_path, run_of(2)), what_if=("graph",)).to_dict()
    _check(json.loads(json.dumps(done)), schema)
    with pytest.raises(AssertionError, match=r"operators\[\].us"):
        _check(json.loads(json.dumps(done | {"operators": [done["operators"][0] | {"us": "1"}]})), schema)


def test_a_wrong_row_does_not_fit() -> None:
    schema = json.loads(CliRunner().invoke(cli, ["run", "--json-schema"]).stdout)
    row = dysharp.run("deepep", gpus=4, tokens=16).to_dict()
    for wrong in ({**row, "time_us": "1"}, {**row, "more": 1}, {name: value for name, value in row.items() if name != "digest"}):
        with pytest.raises(AssertionError):
            _check(wrong, schema)
