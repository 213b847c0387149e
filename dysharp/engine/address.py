"""A state of NamedTuples handed to kernels by its address: one word an argument, where every array would be nine.

`by_address(state)` lays the arrays of `state` down in the frame of its caller, a kernel. Attributes read from there, so a kernel is compiled
with the few words that it uses. These arrays have rows and columns and `len`, and no negative index.
"""

import hashlib
import operator
from functools import cache
from typing import Any, get_type_hints

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.extending import intrinsic, lower_builtin, models, register_model
from numba.core.imputils import lower_getattr, lower_getattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature

_WORD = ir.IntType(64)
_SAME = ir.FunctionType(cgutils.voidptr_t, [cgutils.voidptr_t])
_WORDS = 3  # of an array: its address, rows, columns


class _StateArray(types.Type):
    """An array of the state. `width`: its number of columns where that is known to all who compile (`Annotated` in the state), else 0."""

    def __init__(self, dtype: types.Type, ndim: int, width: int) -> None:
        self.dtype, self.ndim, self.width = dtype, ndim, width
        super().__init__(name=f"table_{dtype}_{ndim}_{width}")


class _Address(types.Type):
    """Address of the arrays of a NamedTuple."""

    def __init__(self, block: Any) -> None:
        self.block = block
        digest = hashlib.blake2b(str(block).encode(), digest_size=6).hexdigest()
        super().__init__(name=f"{block.instance_class.__name__}_{digest}")


def _is_named(kind: Any) -> bool:
    """Whether a type is a NamedTuple."""
    return isinstance(kind, types.BaseNamedTuple)


def _known(kind: Any, width: int) -> Any:
    """Type of a field as kernels see it."""
    if _is_named(kind):
        return _Address(kind)
    if isinstance(kind, types.Array):
        if kind.layout != "C" or kind.ndim > 2:
            raise TypingError(f"state: found {kind}, expected an array of one or two dimensions in C order")
        return _StateArray(kind.dtype, kind.ndim, width)
    return kind


@cache  # asked for at every attribute of every kernel
def _fields(block: Any) -> list[tuple[str, types.Type, int]]:
    """(name, type as kernels see it, first word) of each field."""
    hints, at, fields = get_type_hints(block.instance_class, include_extras=True), 0, []
    for name, kind in zip(block.fields, block.types, strict=True):
        fields.append((name, _known(kind, getattr(hints[name], "__metadata__", (0,))[0]), at))
        at += _size(kind)
    return fields


def _size(kind: Any) -> int:
    """Words of a field."""
    if _is_named(kind):
        return sum([_size(part) for part in kind.types])
    return _WORDS if isinstance(kind, types.Array) else 0


@register_model(_StateArray)
class _TableModel(models.StructModel):
    def __init__(self, manager: Any, kind: _StateArray) -> None:
        super().__init__(manager, kind, [("data", types.CPointer(kind.dtype)), ("rows", types.intp), ("columns", types.intp)])


@register_model(_Address)
class _AddressModel(models.OpaqueModel):
    pass


def _by_address(typing: Any, state: Any) -> Any:
    """`state` with each of its parts by address. For kernels: the addresses end with the call of the kernel that asked for them."""
    if not _is_named(state):
        return None
    handed = types.BaseTuple.from_types([_known(kind, 0) for kind in state.types], state.instance_class)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        frame = cgutils.alloca_once(builder, _WORD, size=_size(state))
        _lay_down(context, builder, state, args[0], frame, 0)
        base = builder.asm(_SAME, "", "=r,0,~{memory}", [builder.bitcast(frame, cgutils.voidptr_t)], True)  # what was laid down is read from here on
        parts = [_field(context, builder, kind, base, at) for (_, _, at), kind in zip(_fields(state), handed.types, strict=True)]
        return context.make_tuple(builder, handed, parts)

    return handed(state), code


by_address: Any = intrinsic(_by_address)


def _lay_down(context: Any, builder: Any, block: Any, value: Any, frame: Any, at: int) -> None:
    for i, kind in enumerate(block.types):
        part = builder.extract_value(value, i)
        if _is_named(kind):
            _lay_down(context, builder, kind, part, frame, at)
        elif isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, part)
            shape = cgutils.unpack_tuple(builder, array.shape)
            words = [builder.ptrtoint(array.data, _WORD), shape[0], shape[-1]]
            for k, word in enumerate(words):
                builder.store(word, builder.gep(frame, [ir.Constant(ir.IntType(32), at + k)]))
        at += _size(kind)


def _field(context: Any, builder: Any, kind: types.Type, base: Any, at: int) -> Any:
    """Value of a field of type `kind` whose words begin at word `at` behind the address `base`."""
    if isinstance(kind, _Address):
        return cgutils.pointer_add(builder, base, at * 8)
    if not isinstance(kind, _StateArray):
        return context.get_dummy_value()
    table = cgutils.create_struct_proxy(kind)(context, builder)
    pointer = context.get_value_type(types.CPointer(kind.dtype))
    table.data = builder.inttoptr(_word(builder, base, at), pointer)
    table.rows = _word(builder, base, at + 1)
    table.columns = ir.Constant(_WORD, kind.width) if kind.width else _word(builder, base, at + 2)
    return table._getvalue()


def _word(builder: Any, base: Any, at: int) -> Any:
    """A word of the frame. Nothing changes it, so it need not be read again behind a store."""
    value = builder.load(cgutils.pointer_add(builder, base, at * 8, return_type=_WORD.as_pointer()))
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


@infer_getattr
class _AddressAttributes(AttributeTemplate):
    key = _Address

    def generic_resolve(self, typ: Any, attr: str) -> Any:  # type: ignore[override]
        return next((kind for name, kind, _ in _fields(typ.block) if name == attr), None)


@lower_getattr_generic(_Address)
def _address_getattr(context: Any, builder: Any, address: _Address, value: Any, attribute: str) -> Any:
    kind, at = next((kind, at) for name, kind, at in _fields(address.block) if name == attribute)
    return _field(context, builder, kind, value, at)


@infer_getattr
class _TableAttributes(AttributeTemplate):
    key = _StateArray

    def resolve_shape(self, table: _StateArray) -> types.Type:
        return types.UniTuple(types.intp, table.ndim)


@lower_getattr(_StateArray, "shape")
def _table_shape(context: Any, builder: Any, kind: _StateArray, value: Any) -> Any:
    table = cgutils.create_struct_proxy(kind)(context, builder, value)
    return context.make_tuple(builder, types.UniTuple(types.intp, kind.ndim), [table.rows, table.columns][: kind.ndim])


@infer_global(len)
class _Len(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(types.intp, *args) if isinstance(args[0], _StateArray) else None


@lower_builtin(len, _StateArray)
def _table_len(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0]).rows


def _is_index(table: Any, index: Any) -> bool:
    if not isinstance(table, _StateArray):
        return False
    each: list[Any] = [index] if isinstance(index, types.Integer) else [*getattr(index, "types", ())]
    return len(each) == table.ndim and all(isinstance(kind, types.Integer) for kind in each)


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(args[0].dtype, *args) if _is_index(*args) else None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(types.none, args[0], args[1], args[0].dtype) if _is_index(*args[:2]) else None


def _cell(context: Any, builder: Any, kind: _StateArray, value: Any, index: Any, at: Any) -> Any:
    """Pointer to one number of a table."""
    table = cgutils.create_struct_proxy(kind)(context, builder, value)
    each = [(index, at)] if isinstance(index, types.Integer) else list(zip(index, cgutils.unpack_tuple(builder, at), strict=True))
    places = [context.cast(builder, place, of, types.intp) for of, place in each]
    if context.enable_boundscheck:
        for axis, (place, end) in enumerate(zip(places, (table.rows, table.columns), strict=False)):
            cgutils.do_boundscheck(context, builder, place, end, axis)
    flat = places[0] if kind.ndim == 1 else builder.add(builder.mul(places[0], table.columns), places[1])
    return builder.gep(table.data, [flat])


@lower_builtin(operator.getitem, _StateArray, types.Any)
def _table_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.unpack_value(builder, sig.return_type, _cell(context, builder, sig.args[0], args[0], sig.args[1], args[1]))


@lower_builtin(operator.setitem, _StateArray, types.Any, types.Any)
def _table_setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value = context.cast(builder, args[2], sig.args[2], sig.args[0].dtype)
    context.pack_value(builder, sig.args[0].dtype, value, _cell(context, builder, sig.args[0], args[0], sig.args[1], args[1]))


def _prefetch(typing: Any, table: Any, row: Any, column: Any) -> Any:
    """Begin to read the cache line of a number of the state, which an event needs soon. Changes nothing, and any row is allowed."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if isinstance(table, _StateArray):
            parts = cgutils.create_struct_proxy(table)(context, builder, args[0])
            place = context.cast(builder, args[1], row, types.intp)
            flat = place if table.ndim == 1 else builder.add(builder.mul(place, parts.columns), context.cast(builder, args[2], column, types.intp))
            kind, i32 = cgutils.voidptr_t, ir.IntType(32)
            call = builder.module.declare_intrinsic("llvm.prefetch", [kind], ir.FunctionType(ir.VoidType(), [kind, i32, i32, i32]))
            pointer = builder.bitcast(builder.gep(parts.data, [flat]), kind)
            builder.call(call, [pointer, ir.Constant(i32, 1), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.none(table, row, column), code


prefetch: Any = intrinsic(_prefetch)


def _lowest(typing: Any, word: Any) -> Any:
    """Index of the lowest set bit of a non-zero 64-bit word: one machine instruction."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


lowest: Any = intrinsic(_lowest)
