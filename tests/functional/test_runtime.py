"""The runtime API: semantics of the two instructions, tile gates, a layer on them, and what they refuse."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dysharp.base.errors import ConfigError, DysharpError, EmulationMismatch, IsaError
from dysharp.functional.experts import Experts, GatedExperts, IntegerExperts
from dysharp.functional.multicast import LD, ST
from dysharp.functional.numbers import number
from dysharp.functional.runtime import Device, DyMulticastObject, DyMulticastObjectProp

megakernel = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "megakernel.py"))["megakernel"]
GPUS, LOCAL, HIDDEN = 3, 2, 96  # 384 B of int32: three packets


def bound(device: Device, tokens: int = 4, n_active: int = 4, bsize: int = HIDDEN * 4) -> DyMulticastObject:
    obj = device.create(DyMulticastObjectProp(bsize=bsize), tokens)
    for gpu in range(device.n_gpus):
        obj.bind(gpu, [n_active] * device.experts_per_gpu)
    return obj


def row(value: int, columns: int = HIDDEN) -> np.ndarray:
    return np.arange(value, value + columns, dtype=np.int32)


@pytest.mark.parametrize("seed", range(5))
def test_store_reaches_every_listed_expert_and_nobody_else(seed: int) -> None:
    device = Device(GPUS, LOCAL, planes=2, seed=seed)
    obj = bound(device)
    targets = {0: [1, 2, 5], 1: [0], 2: [5, 3], 3: [4, 2, 0]}
    handles = [device.dymultimem_st(t % GPUS, obj, obj.address(t), row(1000 * t), chosen) for t, chosen in targets.items()]
    device.run()
    assert all(h.done for h in handles)
    for e in range(GPUS * LOCAL):
        gpu, local = divmod(e, LOCAL)
        tokens = obj.layout(gpu, local)
        assert sorted(tokens) == [t for t, chosen in targets.items() if e in chosen]
        for block, token in enumerate(tokens):
            assert (obj.memory(gpu, 0, local)[block] == row(1000 * token)).all()
        assert (obj.memory(gpu, 0, local)[len(tokens) :] == number("int32").poison((1,))[0]).all()


@pytest.mark.parametrize("entries", [1, 256])
@pytest.mark.parametrize("seed", range(5))
def test_read_reduce_adds_one_value_of_every_target(seed: int, entries: int) -> None:
    device = Device(GPUS, LOCAL, planes=1, seed=seed, reduction_entries=entries)
    obj = bound(device)
    for token in range(4):
        device.dymultimem_st(0, obj, obj.address(token), row(0), range(GPUS * LOCAL))
    device.run()
    for e in range(GPUS * LOCAL):
        gpu, local = divmod(e, LOCAL)
        for block, token in enumerate(obj.layout(gpu, local)):
            obj.memory(gpu, 1, local)[block] = row(10**e * (token + 1))
    listed = [[0, 1, 2, 3, 4, 5], [3], [0, 5], [1, 2, 4]]
    handles = [device.dymultimem_ld_reduce(1, obj, obj.address(t), HIDDEN, listed[t]) for t in range(4)]
    device.run()
    for token, handle in enumerate(handles):
        assert (handle.value == sum(row(10**e * (token + 1)) for e in listed[token])).all()
    # An entry that is evicted leaves responses that pass the switch by, and a partial sum if it had data.
    extra = device.packets["partial sum"] + device.packets["response"] - device.packets["dymultimem.ld_reduce replica"]
    assert extra > 0 if entries == 1 else extra == 0


def test_packets_on_the_wire() -> None:
    # Experts 0 and 1 are on the source: nothing of theirs crosses a link. 384 B are three packets.
    device = Device(GPUS, LOCAL, planes=2)
    obj = bound(device)
    device.dymultimem_st(0, obj, obj.address(0), row(7), [0, 1])
    device.run()
    assert device.packets.total() == 0
    device.dymultimem_st(0, obj, obj.address(1), row(7), [0, 2, 3, 4])
    device.run()
    replicas = {"dymultimem.st": 3, "dymultimem.st replica": 6, "acknowledgement": 6, "merged acknowledgement": 3}
    assert device.packets == replicas
    for expert in (0, 2, 3, 4):
        obj.memory(expert // LOCAL, 1, expert % LOCAL)[:] = 1
    device.dymultimem_ld_reduce(0, obj, obj.address(1), HIDDEN, [0, 2, 3, 4])
    device.run()
    read = {"dymultimem.ld_reduce": 3, "dymultimem.ld_reduce replica": 6, "response": 6, "result": 3}
    assert device.packets == replicas | read


def test_numpy_scalars_and_arrays_are_operands() -> None:
    device = Device(np.int64(GPUS), np.int32(LOCAL))
    obj = device.create(DyMulticastObjectProp(bsize=np.int64(HIDDEN * 4)), np.int64(4))
    for gpu in np.arange(GPUS):
        obj.bind(gpu, np.full(LOCAL, 4))
    expert = np.array([[1, 4], [0, 5]])
    store = device.dymultimem_st(np.int64(1), obj, obj.address(np.int64(1)), row(3), targets=expert[1])
    device.run()
    assert store.done
    assert obj.layout(np.int64(2), np.int64(1)) == [1]
    assert obj.is_ready(0, (np.int64(0), np.int64(0))) is False
    obj.memory(np.int64(0), np.int64(1), np.int64(0))[0] = row(10)
    obj.memory(2, 1, 1)[0] = row(200)
    load = device.dymultimem_ld_reduce(np.uint8(1), obj, obj.address(1), np.int64(HIDDEN), targets=expert[1])
    none = device.dymultimem_st(0, obj, obj.address(0), row(1), expert[1][:0])
    device.run()
    assert (load.value == row(10) + row(200)).all()
    assert none.done


def test_empty_list_is_complete_at_issue() -> None:
    device = Device(GPUS, LOCAL)
    obj = bound(device)
    assert device.dymultimem_st(0, obj, obj.address(0), row(1), []).done
    assert (device.dymultimem_ld_reduce(0, obj, obj.address(0), HIDDEN, []).value == 0).all()
    assert not device.step()


def test_one_stage_reads_what_was_stored() -> None:
    device = Device(GPUS, LOCAL)
    obj = device.create(DyMulticastObjectProp(bsize=HIDDEN * 4, stage=1), 1)
    for gpu in range(GPUS):
        obj.bind(gpu, [1, 1])
    device.dymultimem_st(0, obj, obj.address(0), row(5), [1, 3, 4])
    device.run()
    handle = device.dymultimem_ld_reduce(2, obj, obj.address(0), HIDDEN, [1, 3, 4])
    device.run()
    assert (handle.value == 3 * row(5)).all()


def test_value_is_refused_before_it_is_there() -> None:
    device = Device(GPUS, LOCAL)
    obj = bound(device)
    handle = device.dymultimem_st(0, obj, obj.address(0), row(5), [3])
    with pytest.raises(EmulationMismatch, match=re.escape("dymultimem.st on GPU 0: found 3 packets under way, expected none (call run first)")):
        _ = handle.value


def test_tile_is_ready_when_the_last_16_bytes_are() -> None:
    device = Device(1, 1)
    obj = bound(device, tokens=2, n_active=2, bsize=64)
    for token, first, n in ((0, 0, 16), (1, 0, 8), (1, 12, 4), (1, 4, 4), (1, 12, 4)):
        assert not obj.is_ready(0, (0, 0))
        device.dymultimem_st(0, obj, obj.address(token, 4 * first), row(first, n), [0])
        device.run()
    # Columns 8 .. 11 of token 1 are missing; what came twice counts once.
    assert not obj.is_ready(0, (0, 0))
    device.dymultimem_st(0, obj, obj.address(1, 32), row(8, 4), [0])
    device.run()
    assert obj.is_ready(0, (0, 0))


# ---- a layer ---------------------------------------------------------------------------------------------------------------------


def layer(dtype: str, tokens: int = 50, topk: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray, Experts]:
    rng = np.random.default_rng(tokens)
    stored, experts = number(dtype).stored, 8
    expert = np.stack([rng.permutation(experts)[:topk] for _ in range(tokens)])
    expert[2], expert[5, -1] = -1, -1  # a token without experts, a dropped choice
    expert[expert == 7] = 6 if topk == 1 else -1  # an expert without tokens
    if dtype == "int32":
        return rng.integers(-3, 4, (tokens, 64)).astype(stored), expert, rng.integers(1, 4, expert.shape), IntegerExperts(experts, 64, 32)
    return rng.standard_normal((tokens, 64)).astype(stored), expert, rng.random(expert.shape), GatedExperts(experts, 64, 32)


def dense(tokens: np.ndarray, expert: np.ndarray, weight: np.ndarray, experts: Experts, work: np.dtype) -> np.ndarray:
    """The layer as a textbook writes it, a token at a time."""
    out = np.zeros(tokens.shape, work)
    for t, k in np.argwhere(expert >= 0):
        e = int(expert[t, k])
        out[t] += weight[t, k] * experts.gemm2(e, experts.act(e, experts.gemm1(e, tokens[t : t + 1].astype(work))))[0]
    return out


@pytest.mark.parametrize("entries", [1, 256])
@pytest.mark.parametrize("seed", range(4))
def test_megakernel_of_integers_is_exact(seed: int, entries: int) -> None:
    case = layer("int32")
    device = Device(4, 2, planes=3, seed=seed, reduction_entries=entries)
    out = megakernel(device, *case, or_entries=entries)
    assert np.array_equal(out, dense(*case, np.dtype(np.int64)))
    assert device.packets["partial sum"] > 0 or entries > 1


def test_megakernel_with_many_tiles_and_top_1() -> None:
    case = layer("int32", tokens=600, topk=1)
    assert np.array_equal(megakernel(Device(2, 4, planes=2), *case), dense(*case, np.dtype(np.int64)))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 2**-5)])
def test_megakernel_of_floats(dtype: str, bound: float) -> None:
    # bfloat16 rounds x, h, a, y, the hub's and the switch's sums to 8 bits: a few times 2^-9 of the largest output each.
    tokens, expert, weight, experts = layer(dtype)
    out = megakernel(Device(4, 2, dtype=dtype), tokens, expert, weight, experts).astype(np.float32)
    expected = dense(tokens, expert, weight, experts, np.dtype(np.float32))
    assert np.abs(out - expected).max() <= bound * np.abs(expected).max()


def test_two_layers_share_a_device() -> None:
    device = Device(4, 2, planes=3)
    for case in (layer("int32", 20), layer("int32", 31)):
        assert np.array_equal(megakernel(device, *case), dense(*case, np.dtype(np.int64)))


# ---- refusals --------------------------------------------------------------------------------------------------------------------

St = Callable[[Device, DyMulticastObject], object]
REFUSED: dict[str, tuple[St, str]] = {
    "dtype": (
        lambda d, o: d.dymultimem_st(1, o, o.address(0), row(0).astype(np.float32), [2]),
        "dymultimem.st data on GPU 1: found dtype float32, expected int32",
    ),
    "dimensions": (
        lambda d, o: d.dymultimem_st(1, o, o.address(0), row(0).reshape(2, -1), [2]),
        "dymultimem.st data on GPU 1: found shape (2, 48), expected one dimension",
    ),
    "whole vectors": (
        lambda d, o: d.dymultimem_st(1, o, o.address(0), row(0, 5), [2]),
        "dymultimem.st data on GPU 1: found shape (5,), expected whole 16 B vectors",
    ),
    "unaligned": (
        lambda d, o: d.dymultimem_ld_reduce(2, o, o.address(1) + 4, 4, [2]),
        "dymultimem.ld_reduce address on GPU 2: found 0x204, expected a multiple of 16",
    ),
    "outside": (lambda d, o: d.dymultimem_st(1, o, o.address(4), row(0), [2]), "dymultimem.st address on GPU 1: found 0x800, expected 0x0 .. 0x7ff"),
    "past the block": (
        lambda d, o: d.dymultimem_st(1, o, o.address(0, 16), row(0), [2]),
        "dymultimem.st data on GPU 1: found an end at byte 400 of the block, expected at most bsize = 384",
    ),
    "unknown expert": (
        lambda d, o: d.dymultimem_ld_reduce(0, o, o.address(0), 4, [2, 6]),
        "dymultimem.ld_reduce targets on GPU 0: found expert 6, expected 0 .. 5",
    ),
    "twice": (
        lambda d, o: d.dymultimem_st(0, o, o.address(0), row(0), [2, 4, 2]),
        "dymultimem.st targets on GPU 0: found expert 2 2 times, expected distinct experts",
    ),
    "count": (
        lambda d, o: d.dymultimem_st(0, o, o.address(0), row(0), range(32768)),
        "dymultimem.st target count on GPU 0: found 32768, expected at most 32767",
    ),
    "gpu": (lambda d, o: d.dymultimem_st(3, o, o.address(0), row(0), [0]), "dymultimem.st gpu: found 3, expected 0 .. 2"),
    "other device": (
        lambda d, o: Device(GPUS, LOCAL).dymultimem_st(0, o, o.address(0), row(0), [0]),
        "dymultimem.st object on GPU 0: found one of another device, expected one of this device",
    ),
    "array of two dimensions": (
        lambda d, o: d.dymultimem_st(0, o, o.address(0), row(0), np.array([[0, 1], [2, 3]])),
        "dymultimem.st targets on GPU 0: found [[0, 1], [2, 3]], expected a list or a one-dimensional array of experts",
    ),
    "one number": (
        lambda d, o: d.dymultimem_ld_reduce(0, o, o.address(0), 4, 3),
        "dymultimem.ld_reduce targets on GPU 0: found 3, expected a list or a one-dimensional array of experts",
    ),
    "experts as floats": (
        lambda d, o: d.dymultimem_st(0, o, o.address(0), row(0), np.array([0.0, 1.0])),
        "dymultimem.st targets on GPU 0: found np.float64(0.0), expected integers",
    ),
    "data as a list": (
        lambda d, o: d.dymultimem_st(0, o, o.address(0), [0, 1, 2, 3], [0]),
        "dymultimem.st data on GPU 0: found list, expected a NumPy array of int32",
    ),
    "address as a float": (
        lambda d, o: d.dymultimem_st(0, o, 16.0, row(0), [0]),
        "dymultimem.st address on GPU 0: found 16.0, expected an integer (obj.address(token))",
    ),
    "elements as a float": (
        lambda d, o: d.dymultimem_ld_reduce(0, o, o.address(0), 4.0, [0]),
        "dymultimem.ld_reduce n_elements on GPU 0: found 4.0, expected an integer",
    ),
    "no object": (lambda d, o: d.dymultimem_st(0, 5, 0, row(0), [0]), "dymultimem.st object on GPU 0: found int, expected a DyMulticastObject"),
    "notify": (lambda d, o: d.notify(0, 7, 0, 0), "notify home: found 7, expected 0 .. 2"),
    "unbound": (
        lambda d, o: d.dymultimem_st(0, new := d.create(o.prop, 1), new.address(0), row(0), [3]),
        "dymultimem.st targets on GPU 0: found expert 3 on GPU 1, expected a GPU where the object is bound",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_instruction_refuses(name: str) -> None:
    device = Device(GPUS, LOCAL)
    act, text = REFUSED[name]
    obj = bound(device)
    with pytest.raises(IsaError, match=f"^{re.escape(text)}$"):
        act(device, obj)
    assert not device.step(), "a refused instruction sends nothing"


def test_region_overflow_names_expert_and_gpu() -> None:
    device = Device(GPUS, LOCAL)
    obj = bound(device, n_active=1)
    for token in range(2):
        device.dymultimem_st(0, obj, obj.address(token), row(0), [5])
    text = "dymultimem.st region of expert 5 on GPU 2: found 2 blocks, expected at most nactive = 1"
    with pytest.raises(IsaError, match=f"^{re.escape(text)}$"):
        device.run()


def test_read_of_what_nobody_wrote() -> None:
    device = Device(GPUS, LOCAL)
    obj = bound(device)
    device.dymultimem_ld_reduce(1, obj, obj.address(3), HIDDEN, [0])
    text = "dymultimem.ld_reduce targets on GPU 1: found expert 0 of block 3, expected one that dymultimem.st wrote"
    with pytest.raises(IsaError, match=f"^{re.escape(text)}$"):
        device.run()


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
def test_read_before_an_expert_has_written(dtype: str) -> None:
    device = Device(GPUS, LOCAL, dtype=dtype)
    obj = bound(device, bsize=HIDDEN * number(dtype).bytes)
    device.dymultimem_st(0, obj, obj.address(2), row(0).astype(number(dtype).stored), [5])
    device.run()
    device.dymultimem_ld_reduce(1, obj, obj.address(2), HIDDEN, [5])
    text = "dymultimem.ld_reduce targets on GPU 1: found stage 1 of expert 5 unwritten for block 2, expected a write before the load"
    with pytest.raises(IsaError, match=f"^{re.escape(text)}$"):
        device.run()


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: Device(0, 1), "Device: found 0 GPUs, 1 experts each, 18 planes, 256 reduction entries, expected 1 .. 4096 GPUs"),
        (lambda: Device(2, 1, seed=None), "seed: found None, expected a whole number"),
        (lambda: Device(2, 1, dtype="float33"), "dtype 'float33': unknown"),
        (lambda: Device(2, 1).create(DyMulticastObjectProp(bsize=24), 1), "DyMulticastObjectProp bsize: found 24, expected a"),
        (lambda: Device(2, 1).create(DyMulticastObjectProp(bsize=32, stage=3), 1), "DyMulticastObjectProp stage: found 3, expected 1 or 2"),
        (lambda: Device(2, 1).create(DyMulticastObjectProp(bsize=32), 0), "create n_tokens: found 0, expected 1 .. 4398046511104"),
        (lambda: bound(Device(2, 1)).bind(0, [1]), "bind gpu: found GPU 0 bound already, expected one bind per GPU"),
        (lambda: bound(Device(2, 1)).bind(2, [1]), "bind gpu: found 2, expected 0 .. 1"),
        (lambda: Device(2, 1).create(DyMulticastObjectProp(bsize=32), 1).bind(0, [1, 1]), "bind nactive on GPU 0: found [1, 1], expected 1 counts"),
        (lambda: DyMulticastObjectProp(bsize=0, stage=7), "DyMulticastObjectProp bsize: found 0, expected a positive multiple of 16 (bytes)"),
        (lambda: bound(Device(2, 1)).home(-1), "home token: found -1, expected 0 .. "),
        (lambda: bound(Device(2, 1)).home(99), "home token: found 99, expected 0 .. "),
        (lambda: bound(Device(2, 1)).home(0.5), "home token: found 0.5, expected 0 .. "),  # type: ignore[arg-type]
        (lambda: bound(Device(2, 1)).memory(0, 2, 0), f"memory stage: found 2, expected 0 (written by {ST}) or 1 (read by {LD})"),
        (lambda: bound(Device(2, 1)).memory(2, 0, 0), "memory gpu: found 2, expected a GPU that has bound the object (bound: 0, 1)"),
        (lambda: bound(Device(2, 4)).memory(1, 0, 5), "memory local_expert: found 5, expected 0 .. 3 (expert % 4)"),
        (lambda: bound(Device(2, 1)).layout(3, 0), "layout gpu: found 3, expected a GPU that has bound the object (bound: 0, 1)"),
        (lambda: bound(Device(2, 1)).is_ready(0, 1), "is_ready tile: found 1, expected (local expert, number of the tile)"),
        (lambda: bound(Device(2, 1)).gemm1_done(0, (0, 1)), "gemm1_done tile: found number 1, expected 0 .. 0: local expert 0 on GPU 0 has 4 rows"),
        (lambda: Device(2.0, 1), "Device: found 2.0, expected a whole number"),
        (lambda: megakernel(Device(2, 4, dtype="float32"), *layer("int32")), "megakernel tokens: found int32 of shape (50, 64), expected float32"),
        (lambda: megakernel(Device(2, 2), *layer("int32")), "megakernel experts: found 8, expected the device's 4"),
    ],
)
def test_what_is_refused_before_anything_runs(act: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}"):
        act()


def test_errors_are_of_the_package() -> None:
    assert issubclass(IsaError, DysharpError)


def test_bfloat16_bits_survive_a_store() -> None:
    device = Device(2, 1, dtype="bfloat16")
    obj = device.create(DyMulticastObjectProp(bsize=32, stage=1), 1)
    obj.bind(1, [1])
    bits = np.array([0x7FC1, 0xFFFF, 0x0001, 0x8000] * 4, np.uint16).view(ml_dtypes.bfloat16)
    device.dymultimem_st(0, obj, obj.address(0), bits, [1])
    device.run()
    assert (obj.memory(1, 0, 0)[0].view(np.uint16) == bits.view(np.uint16)).all()
