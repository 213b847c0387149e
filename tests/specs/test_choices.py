"""The table of free choices: complete, sourced, in range, and refused when malformed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import choice, choice_int, choice_str, choice_value, list_choices, load_model
from dysharp.specs.catalog import model_from_toml
from dysharp.specs.choices import Choice, choices_overridden
from dysharp.specs.constants import constants_of

GOOD = '[a.b]\nvalue = 1\nlow = 0\nhigh = 2\nunit = ""\nsource = "assumed"\nmeaning = "because"\n'


def test_every_choice_is_complete() -> None:
    assert len(list_choices()) >= 14
    for c in list_choices():
        assert c.reason
        assert c.source in ("paper", "derived", "inferred", "assumed")
        assert isinstance(c.value, str) or (c.low is not None and c.high is not None)


def test_values_that_the_design_fixes() -> None:
    assert choice_value("machine.train_bytes") == 16384
    assert choice("dysharp.combine_window").automatic == 0
    assert (choice_int("machine.responder_ns"), choice_str("gemm.weight_reuse")) == (500, "layer")


def test_names_and_types() -> None:
    with pytest.raises(ConfigError, match=r"unknown choice 'machine.train_byte'; did you mean"):
        choice("machine.train_byte")
    with pytest.raises(ConfigError, match=r"choice 'gemm.weight_reuse': found 'layer', expected an integer"):
        choice_int("gemm.weight_reuse")
    with pytest.raises(ConfigError, match=r"choice 'gemm.tile_rows': found 128, expected a word"):
        choice_str("gemm.tile_rows")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 1", "value = 3", "a.b.value: found 3, expected 0 to 2"),
        ("value = 1", 'value = "w"\nalternatives = ["x", "y"]', "value: found 'w', expected one of x, y"),
        ("value = 1", "value = 0x" + "f" * 5000, "found an integer of more than 300 digits"),
        ("low = 0\n", "", "low, high: missing"),
        ("meaning", "meanin", 'meanin: unknown key; did you mean "meaning"?'),
        ('"assumed"', '"guess"', "a.b.source: found 'guess'"),
        ("value = 1", "value = true", "a.b.value"),
        ("[a.b]", "a = 1\n[c.b]", "a: found 1, expected a table"),
        ("[a.b]", "[a]", "a.name: found 'a', expected"),
    ],
)
def test_malformed_tables(old: str, new: str, message: str) -> None:
    assert constants_of(Choice, GOOD, "c.toml")["a.b"].value == 1
    with pytest.raises(ConfigError) as caught:
        constants_of(Choice, GOOD.replace(old, new), "c.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("c.toml")


def test_an_override_lasts_for_its_block() -> None:
    with choices_overridden({"machine.responder_ns": 300}):
        with choices_overridden({"gemm.tile_rows": 64}):
            assert (choice_int("machine.responder_ns"), choice_int("gemm.tile_rows")) == (300, 64)
        assert (choice_int("machine.responder_ns"), choice_int("gemm.tile_rows")) == (300, 128)
        assert choice("machine.responder_ns").high == 1000
    assert choice_int("machine.responder_ns") == 500


def test_an_override_is_not_seen_by_another_thread() -> None:
    with choices_overridden({"machine.responder_ns": 300}), ThreadPoolExecutor(1) as pool:
        assert pool.submit(choice_int, "machine.responder_ns").result() == 500


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"machine.responder": 300}, "unknown choice 'machine.responder'; did you mean"),
        ({"machine.responder_ns": 9999}, "choice 'machine.responder_ns': value: found 9999, expected 300 to 1000"),
        ({"machine.responder_ns": "fast"}, "choice 'machine.responder_ns': found 'fast', expected int"),
        ({"gemm.weight_reuse": "never"}, "value: found 'never', expected one of layer, tile"),
    ],
)
def test_a_bad_override_is_refused(values: dict[str, int | str], text: str) -> None:
    with pytest.raises(ConfigError) as caught, choices_overridden(values):
        pass
    assert text in str(caught.value)
    assert choice_int("machine.responder_ns") == 500


def test_a_model_takes_the_values_of_choices_when_it_is_loaded() -> None:
    assert (load_model("L-8").n_matrices, load_model("L-8").element_bytes, load_model("L-8").dispatch_format) == (2, 2, "rows")
    with choices_overridden({"paper_models.n_matrices": 3, "paper_models.dispatch_format": "fp8"}):
        gated = load_model("S-32")
    assert (gated.n_matrices, gated.element_bytes, gated.dispatch_format, gated.topk) == (3, 2, "fp8", 32)
    assert load_model("S-32").n_matrices == 2
    assert load_model("deepseek-v3").dispatch_format == "rows"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{ choice = "paper_models.n_matrixes" }', "m.toml: unknown choice 'paper_models.n_matrixes'; did you mean"),
        ('{ choice = "gemm.weight_reuse" }', "n_matrices: found 'layer', expected a valid integer"),
        ("{ chioce = 1 }", "n_matrices: found {'chioce': 1}, expected a valid integer"),
    ],
)
def test_a_wrong_choice_in_a_model_file(value: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_from_toml(f'base = "S-8"\nname = "mine"\nn_matrices = {value}\n', "m.toml")
    assert text in str(caught.value)
