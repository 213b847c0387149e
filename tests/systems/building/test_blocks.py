"""Building blocks: batches say which op carries which row, and steps without a cost work on every cluster."""

from __future__ import annotations

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.base.errors import ConfigError, ProgramError
from dysharp.program import Discipline, Head, Tail
from dysharp.program.verify import verify
from dysharp.specs import load_cluster
from dysharp.systems.building.batch import Batch, Sends, ids
from dysharp.systems.building.experts import fused, one_after_another
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.workload import make_routing


def layer_of(gpus: int = 4, tokens: int = 12, machine=None, **options) -> LayerBuilder:
    machine = cluster(gpus) if machine is None else machine
    return LayerBuilder(TINY, machine, make_routing("lognormal:1.0", TINY, gpus, tokens, seed=3), "fwd", **options)


def edges_of(layer: LayerBuilder) -> set[tuple[int, int, int, int]]:
    """(tail kind, tail, head kind, head) of every edge so far."""
    return {edge for part in layer.b._edges for edge in zip(*(column.tolist() for column in part), strict=True)}


def member_rows(layer: LayerBuilder, op: np.ndarray) -> np.ndarray:
    """`[useful rows]` the op whose transfer fills each region row, by useful row."""
    program = layer.build("one_copy_per_gpu")
    ptr = program.members.fill_ptr
    owner = np.repeat(np.arange(program.n_ops), np.diff(program.members.ptr))
    of_fill = np.repeat(owner, np.diff(ptr))
    by_row = np.full(program.n_rows, -1)
    mine = np.isin(of_fill, op)
    by_row[program.members.fill_row[mine]] = of_fill[mine]
    return by_row[layer.row_of]


def test_a_dispatch_batch_knows_the_op_of_every_useful_row():
    for dispatch in (LayerBuilder.dispatch_puts, LayerBuilder.dispatch_rows, lambda layer: layer.dispatch_multicast(4)):
        layer = layer_of()
        batch = dispatch(layer)
        assert batch.of_useful_row.tolist() == member_rows(layer, batch.op).tolist()


@pytest.mark.parametrize("rows", [False, True])
def test_a_combine_batch_has_the_gpus_and_tokens_of_its_useful_rows(rows):
    layer = layer_of()
    layer.dispatch_puts()
    batch = layer.combine_rows(Discipline.READY_FIFO) if rows else layer.combine_puts(Discipline.READY_FIFO)
    node, to = np.full(batch.op.max() + 1, -1), np.full(batch.op.max() + 1, -1)
    node[batch.op], to[batch.op] = batch.node, batch.to
    assert (node[batch.of_useful_row] == layer.p.row_gpu).all()
    assert (to[batch.of_useful_row] == layer.p.row_source).all()
    assert len(set(batch.of_useful_row.tolist())) == len(batch.op)
    assert batch.tile.shape == (layer.n_gpus,)


def test_a_paced_batch_answers_with_the_op_in_front():
    layer = layer_of(machine=load_cluster("hw-dgx-h100").with_gpus(4))
    puts = layer.dispatch_rows()
    paced = layer.paced("dispatch", puts, 1000)
    far = puts.node != puts.to
    assert (paced.op[~far] == puts.op[~far]).all()
    assert not set(paced.op[far].tolist()) & set(puts.op.tolist())
    assert edges_of(layer) == {(Tail.OP_DONE, int(a), Head.OP_ISSUE, int(b)) for a, b in zip(paced.op[far], puts.op[far], strict=True)}
    assert (paced.of_useful_row == paced.op).all()
    all_paced = layer.paced("dispatch", puts, 1000, own=True)
    assert not set(all_paced.op.tolist()) & set(puts.op.tolist())


def test_waits_name_who_waits_first():
    layer = layer_of(gpus=2)
    first, second = layer.join("a"), layer.join("b")
    done, ready, issue = int(Tail.OP_DONE), int(Tail.TILE_READY), int(Head.OP_ISSUE)
    layer.wait_each(second, first)
    assert edges_of(layer) == {(done, 0, issue, 2), (done, 1, issue, 3)}
    layer.wait_all(second, first)
    assert edges_of(layer) == {(done, t, issue, h) for t in (0, 1) for h in (2, 3)}
    layer.b._edges.clear()
    layer.wait_tiles(second, np.array([-1, 7]))
    assert edges_of(layer) == {(ready, 7, issue, 3)}
    layer.b._edges.clear()
    batch = Batch(op=ids(10, 4), node=np.array([1, 1, 0, 0], np.int32))
    layer.wait_first(batch, first)
    assert edges_of(layer) == {(done, 1, issue, 10), (done, 0, issue, 12)}
    layer.b._edges.clear()
    layer.wait_first(batch, first, stream=np.array([0, 1, 1, 2]))
    assert edges_of(layer) == {(done, 1, issue, 10), (done, 1, issue, 11), (done, 0, issue, 13)}


def test_steps_without_a_cost_work_on_a_paper_cluster():
    layer = layer_of()
    puts = layer.dispatch_puts()
    told, known = layer.join("told"), layer.join("known")
    layer.wait_each(told[puts.node], puts.op)
    layer.flags("counts", 2, told, known)
    finished = one_after_another(layer, known)
    layer.wait_first(layer.combine_puts(Discipline.PROGRAM_ORDER), finished)
    verify(layer.build("one_copy_per_gpu"))


def test_software_steps_are_the_builders_own():
    layer = layer_of()
    assert SoftwareSteps(layer) is layer
    with pytest.raises(ConfigError, match="class Mine: found base SoftwareSteps, expected Kernels"):
        type("Mine", (SoftwareSteps,), {})


def test_costs_need_an_hw_cluster():
    layer = layer_of()
    text = r'software costs: found cluster "[^"]+" without a GPU, expected an hw-\* cluster \(it names a GPU with fitted constants\)'
    with pytest.raises(ConfigError, match=text):
        _ = layer.costs
    with pytest.raises(ConfigError, match=text):
        layer.barrier("dispatch", "ready", layer.join("start"))


def test_schedules_return_their_gemms_and_pools():
    layer = layer_of()
    layer.dispatch_puts()
    gemms = fused(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row)
    assert gemms is not None
    assert [len(ops) for ops in (*gemms.first, *gemms.second)] == [len(layer.tiles)] * 2
    assert (gemms.results == gemms.second[0]).all()
    assert len(gemms.sms) == layer.n_gpus
    program = layer.build("one_copy_per_gpu")
    assert [program.pools.slots[pool] for pool in gemms.sms] == [layer.cluster.n_sms] * layer.n_gpus
    bare = layer_of(compute=False)
    bare.dispatch_puts()
    assert fused(bare, bare.combine_puts(Discipline.READY_FIFO).of_useful_row) is None


def test_a_batch_of_several_receivers_says_so():
    layer = layer_of()
    batch = layer.dispatch_multicast(4)
    assert isinstance(batch, Sends)
    assert (batch.to == -1).all()


def test_ops_in_the_order_of_sending_are_no_ops_of_useful_rows():
    layer = layer_of()
    layer.dispatch_puts()
    back = layer.combine_puts(Discipline.READY_FIFO)
    text = rf"wait_rows: found {len(back.op)} ops, expected one for each of {len(layer.row_of)} useful rows"
    with pytest.raises(ProgramError, match=text):
        fused(layer, back.op)
