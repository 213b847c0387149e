"""Families `kv-transfer`, `nccl-torch`, `nccl-internode` and SGLang's all-reduces: what they read, refuse and predict."""

import numpy as np
import pytest

from dysharp.measured.family import Missing, Parsed, classify
from dysharp.measured.measurements import measurements_from_csv, read_measurements, read_operators
from dysharp.measured.predictions import ClosedForms, errors_of, measured_values
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import HEADER, line

KV = {"backend": "nixl", "fabric": "mnnvl (scale-up)", "batch": 4, "bytes_per_request": 1 << 24, "descriptors": 26}


def one(kind: str, config: dict[str, object], **cells: object) -> Parsed | Missing:
    text = f"{HEADER}\n{line('x', kind=kind, config=config, value=50, **cells)}\n"  # type: ignore[arg-type]
    return classify(measurements_from_csv(text, "x")).entries[0]


def us(entry: Parsed | Missing) -> float:
    assert isinstance(entry, Parsed)
    return float(ClosedForms([entry]).us(fitted_values())[0])


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "rows", "median"), [("nccl-torch", 40, 10.0), ("nccl-internode", 18, 25.0), ("kv-transfer", 68, 15.0)])
def test_errors_of_the_packaged_rows_are_of_a_known_size(family: str, rows: int, median: float) -> None:
    entries = [e for e in classify(read_measurements() + read_operators()).parsed if e.family.name == family]
    found = errors_of(ClosedForms(entries).values(fitted_values()), measured_values(entries))
    assert found.n == rows
    assert found.median_ape < median


def test_pages_over_nvlink_take_a_launch_each_and_over_nics_their_bytes() -> None:
    pages, bulk = (us(one("kv_transfer", KV | {"descriptors": n}, hardware="GB300")) for n in (26, 1))
    assert np.isclose(pages, 4 * 26 * fitted_values()["serving.launch_us"])
    assert bulk < pages
    far = KV | {"fabric": "rdma (scale-out)"}
    two, one_nic = (us(one("kv_transfer", far | {"backend": name}, hardware="B200-SXM")) for name in ("nixl", "mooncake"))
    assert np.isclose(one_nic, 2 * two)
    assert np.isclose(one_nic, 4 * (1 << 24) / 47e3)


@pytest.mark.parametrize(("cells", "config"), [("GB300", {"backend": "other"}), ("H800", {"fabric": "rdma"})])
def test_a_library_or_a_machine_without_a_nic_has_no_prediction(cells: str, config: dict[str, object]) -> None:
    assert isinstance(one("kv_transfer", KV | config, hardware=cells), Missing)


def test_an_alltoall_between_nodes_is_near_the_rate_of_the_nic_at_its_peak_alone() -> None:
    config = {"ep": 64, "nodes": 8}
    peak, small = (one("nccl_alltoall", config, hardware="8xH100 nodes", metric=f"busbw {at}", unit="GB/s") for at in ("peak", "at 4 MiB"))
    assert isinstance(peak, Parsed)
    assert isinstance(small, Parsed)
    assert small.in_unit(us(small)) < peak.in_unit(us(peak)) < 47 * 63 / 56


@pytest.mark.parametrize(
    ("gpus", "size", "kernel"), [(4, 1 << 18, "trtllm one-shot"), (4, 1 << 20, "vllm two-stage"), (2, 1 << 23, "vllm one-stage"), (8, 1 << 25, "")]
)
def test_sglang_stores_vectors_then_loads_shares_and_leaves_large_ones_to_nccl(gpus: int, size: int, kernel: str) -> None:
    config = {"gpus": gpus, "bytes": size, "kernel": "SGLang_CustomAllReduce_graph"}
    found = one("custom_allreduce", config, system="SGLang 0.5.14 custom all-reduce")
    assert getattr(getattr(found, "case", None), "kernel", "") == kernel
    assert isinstance(one("custom_allreduce", config | {"kernel": "eager"}, system="SGLang custom"), Missing)
