"""Layouts: groups and strides as Megatron orders ranks, chunks of layers, and one line for every layout that does not fit."""

import itertools

import pytest

from dysharp.base.errors import ConfigError
from dysharp.model import Chunk, Layout, check_domain, check_layout, chunks_of, layout_of
from dysharp.model.layout import KINDS, Kind
from dysharp.planning.schedules import ranks_of
from dysharp.specs import list_whole_models, load_whole


def domains(layout: Layout, kind: Kind, domain_gpus: int) -> int:
    """NVLink domains, counted from rank 0, over which the widest group of a kind is spread."""
    return max(len({rank // domain_gpus for rank in group}) for group in layout.groups(kind))


def test_groups_are_those_of_megatrons_docstring() -> None:
    layout = layout_of("tp=2,pp=4,gpus=16")
    assert layout.groups("tp")[:3] == [[0, 1], [2, 3], [4, 5]]
    assert layout.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert layout.groups("pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


@pytest.mark.parametrize("text", ["tp=2,cp=2,pp=2,ep=8,gpus=32", "tp=4,ep=2,etp=2,pp=3,dp=2", "ep=8,gpus=8"])
def test_every_rank_is_in_one_group_of_each_kind(text: str) -> None:
    layout = layout_of(text)
    for kind in KINDS:
        groups = layout.groups(kind)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.gpus))
        assert {len(group) for group in groups} == {getattr(layout, kind)}
    assert layout.tp * layout.cp * layout.dp * layout.pp == layout.etp * layout.ep * layout.edp * layout.pp == layout.gpus


# layout, GPUs of a domain, domains of a group of (tp, ep, dp, edp, pp); specification of a step, table of fabrics
FABRICS = [
    ("tp=2,pp=8,ep=64,gpus=1024", 8, (1, 8, 16, 2, 8)),
    ("pp=4,ep=64,gpus=256", 64, (1, 1, 1, 1, 4)),
    ("ep=8,gpus=8", 8, (1, 1, 1, 1, 1)),
    ("pp=16,ep=64,gpus=2048", 8, (1, 8, 16, 2, 16)),
]


@pytest.mark.parametrize(("text", "domain", "expected"), FABRICS)
def test_domains_of_groups(text: str, domain: int, expected: tuple[int, ...]) -> None:
    layout = layout_of(text)
    assert tuple(domains(layout, kind, domain) for kind in ("tp", "ep", "dp", "edp", "pp")) == expected


def test_text_of_a_layout() -> None:
    layout = layout_of("tp=2, pp=8, ep=64, gpus=1024, mbs=1, gbs=16384")
    assert (layout.dp, layout.edp, layout.micro_batches, layout.global_batch) == (64, 2, 256, 16384)
    assert layout_of("tp=2,ep=64").dp == 32  # the least that holds the experts
    assert layout_of("cp=2,mbs=2").tokens(4096) == 4096


def test_equal_chunks_and_uneven_chunks() -> None:
    qwen, v3 = load_whole("qwen3-30b"), load_whole("deepseek-v3")
    assert chunks_of(qwen, layout_of("pp=2,vpp=2")) == (
        Chunk(0, 12, embedding=True), Chunk(12, 12), Chunk(24, 12), Chunk(36, 12, head=True)
    )  # fmt: skip
    bridge = chunks_of(v3, layout_of("pp=8,vpp=4,stages=Et|(tt|)*30mL"))
    assert [c.n_layers for c in bridge] == [1, *[2] * 30, 0]
    assert (bridge[-1].mtp, bridge[-1].head, bridge[0].embedding) == (1, 2, True)
    rack = chunks_of(v3, layout_of("pp=2,vpp=8,stages=Et*4|(t*4|)*14tmL"))
    assert [c.n_layers for c in rack] == [4] * 15 + [1]


def test_chunks_of_a_rank() -> None:
    assert ranks_of("1f1b", layout_of("pp=4,vpp=2")) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert ranks_of("zbv", layout_of("pp=4,vpp=2")) == ((0, 7), (1, 6), (2, 5), (3, 4))
    assert ranks_of("dualpipe", layout_of("pp=4")) == ((0, 3), (1, 2), (2, 1), (3, 0))


def test_layers_that_do_not_divide_leave_the_ends_the_fewer() -> None:
    """As a search proposes: 61 layers in 8 x 4 chunks."""
    model, layout = load_whole("deepseek-v3"), layout_of("pp=8,vpp=4,ep=8,m=8")
    check_layout(model, layout)
    counts = [chunk.n_layers for chunk in chunks_of(model, layout)]
    assert counts == [1, *[2] * 29, 1, 1]
    assert [chunk.n_layers for chunk in chunks_of(model, layout_of("pp=7"))] == [8, 9, 9, 9, 9, 9, 8]


BAD = {
    "pp=62": "pp x vpp: found 62, expected at most layers = 61",
    "tp=3": "tp: found 3, expected a divisor of heads = 128",
    "ep=48": "ep: found 48, expected a divisor of experts = 256",
    "ep=3,gpus=8": "found ep x etp = 3, expected a divisor of the 8 GPUs of a pipeline stage",
    "vpp=61": "vpp: found 61, expected 1 without a pipeline",
    "cp=3": "2 x cp: found 6, expected a divisor of tokens of a sequence = 4096",
    "pp=3,gpus=8": "found gpus=8, expected a multiple of tp x cp x pp = 3",
    "dp=4,gbs=6": "found gbs=6, expected a multiple of dp x mbs = 4",
    "dp=4,gpus=4": "expected no dp beside gpus",
    "ep=8,m=99999999": "micro_batches: found '99999999', expected an integer from 1 to 9999999",
    "tp=x": "tp: found 'x', expected an integer from 1 to 9999999",
    "tpp=2": "'tpp': unknown key; did you mean",
    "tp=2,tp=2": "found tp twice",
    "pp=2,stages=Et*60|L": "found 60 layers, expected 61",
    "pp=2,stages=Et*61L": "found 1 chunks, expected pp x vpp = 2",
    "pp=2,stages=Et*60|Lt": "expected E first",
    "pp=2,stages=Et*61|mmL": "found 2 MTP layers, expected 1 or none",
    "stages=E(t*9999)*9999L": "expected fewer",
    "stages=Ex": "expected E, t, m, L",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_layout_gets_one_line_with_the_constraint(text: str) -> None:
    model = load_whole("deepseek-v3")

    def build() -> None:
        layout = layout_of(text)
        check_layout(model, layout)
        chunks_of(model, layout)

    with pytest.raises(ConfigError) as error:
        build()
    assert BAD[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_experts_beyond_the_domain_need_other_nodes() -> None:
    with pytest.raises(ConfigError, match="ep: found 64 x etp 1, expected at most the 8 GPUs of the only NVLink domain"):
        check_domain(layout_of("ep=64"), 8)
    check_domain(layout_of("ep=64"), 8, n_domains=8)
    with pytest.raises(ConfigError, match="found 128 GPUs, expected at most 64"):
        check_domain(layout_of("ep=64,gpus=128"), 8, n_domains=8)
    with pytest.raises(ConfigError, match="tp: found 16, expected groups inside an NVLink domain of 8"):
        check_domain(layout_of("tp=16"), 8, n_domains=2)
    for domains_ in (8, None):  # four groups of 6 on three nodes: two of them lie in two nodes
        with pytest.raises(ConfigError, match="ep: found 6 x etp 1, expected groups inside an NVLink domain of 8 GPUs, or over whole ones"):
            check_domain(layout_of("ep=6,gpus=24"), 8, domains_)
        check_domain(layout_of("ep=6"), 8, domains_)


def test_states_of_linear_attention_are_not_cut_by_context() -> None:
    with pytest.raises(ConfigError, match="cp: found 2, expected 1: linear attention and Mamba-2"):
        check_layout(load_whole("qwen3-next-80b"), layout_of("cp=2,gbs=8"))


@pytest.mark.parametrize("name", list_whole_models())
def test_every_packaged_model_has_a_layout(name: str) -> None:
    model = load_whole(name)
    layout = layout_of("gbs=8")
    check_layout(model, layout)
    (chunk,) = chunks_of(model, layout)
    assert chunk == Chunk(0, model.n_layers, embedding=True, mtp=model.mtp, head=1 + model.mtp)


def test_tensor_groups_lie_in_domains_where_none_of_them_crosses() -> None:
    """`plan`, `step` and `serve` ask `Layout.fits`; this counts ranks. Experts fill whole domains, too, and a job may use 64 GPUs of 72."""
    for domain, tp, dp in itertools.product((4, 6, 8, 12), range(1, 13), (1, 2, 3, 5)):
        layout = Layout(tp=tp, dp=dp, etp=tp)
        inside = domains(layout, "tp", domain) == 1
        experts = inside or tp % domain == 0 or (tp < domain and tp & (tp - 1) == 0)
        assert tuple(Layout.fits(tp, tp, 1, layout.gpus, domain)) == (inside, inside, experts), (domain, tp, dp)
    assert [bool(Layout.fits(1, 1, n, 128, 72)[2]) for n in (64, 36, 40, 72, 144)] == [True, True, False, True, True]
