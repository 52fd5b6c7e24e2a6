"""One pillar, sixteen channels at a time, in the processor's vector registers.

The loop of Eq. 6 over a pillar's events needs, for each channel, a slope, a base and K = 3 running moments. Left to
itself the compiler keeps them in memory and the loop waits for loads and stores. Here it is written with vectors of
sixteen numbers, which stay in registers (four of NEON, two of AVX, one of AVX-512) from the first event to the last.
``cpu_loops.forward`` is the readable twin.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Channels to a block; the number of channels must be a multiple of it.
WIDTH = 16
MOMENTS = 3

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_EVENT = ir.VectorType(_FLOAT, 1 + MOMENTS)
_FAST = ("contract", "nnan", "nsz")


class _Writer:
    """Writes the instructions of one block of channels."""

    def __init__(self, builder: Any, channels: Any) -> None:
        self.builder = builder
        self.row = builder.mul(channels, _LONG(4))  # bytes from one row of a table to the next

    def load(self, address: Any, kind: Any = _VECTOR) -> Any:
        return self.builder.load(self.builder.inttoptr(address, ir.PointerType(kind)), align=4)

    def of_row(self, table: Any, row: Any) -> Any:
        """This block of a row."""
        return self.load(self.builder.add(table, self.builder.mul(row, self.row)))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.fadd(self.builder.fmul(a, b, flags=_FAST), c, flags=_FAST)

    def everywhere(self, numbers: Any, place: int) -> Any:
        """One of several numbers, in all sixteen places."""
        places = ir.Constant(ir.VectorType(_INT, WIDTH), [place] * WIDTH)
        return self.builder.shuffle_vector(numbers, ir.Constant(numbers.type, ir.Undefined), places)

    def number(self, address: Any) -> Any:
        """A number in memory, in all sixteen places."""
        one = self.load(address, _FLOAT)
        lonely = self.builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), one, _INT(0))
        return self.everywhere(lonely, 0)


@intrinsic
def sixteen_channels(  # type: ignore[no-untyped-def]
    _typing_context, events, places, count, shape, base, table, slope, alpha, beta, image, channels
):
    """Write sixteen channels of one pillar; all arguments are int64: addresses, or numbers where said.

    Args:
        events: float32 [count, 4], tau and the three ``Described.basis`` of each event.
        places: int32 [count], see ``Binned.place``.
        count: a number, 1 or more.
        shape: float32 [6], see ``Described.shape``.
        base, table, slope, alpha, beta: of this block's first channel in the parts of ``Folded``.
        image: of this block's first channel in the pillar's cell.
        channels: a number, C.
    """
    return types.void(*[types.int64] * 11), _sixteen_channels


def _sixteen_channels(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    """beta + Σ_k alpha_k Σ_events relu(base + table[place] + slope · tau) · basis_k."""
    events, places, count, shape, base, table, slope, alpha, beta, image, channels = arguments
    write = _Writer(builder, channels)
    zero = ir.Constant(_VECTOR, [0.0] * WIDTH)
    offset = write.load(base)
    for feature in range(1, 6):
        factor = write.number(builder.add(shape, _LONG(4 * feature)))
        offset = write.multiply_add(write.of_row(base, _LONG(feature)), factor, offset)
    slopes = write.load(slope)

    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_LONG)
    sums = [builder.phi(_VECTOR) for _ in range(MOMENTS)]
    event = write.load(builder.add(events, builder.mul(number, _LONG(4 * (1 + MOMENTS)))), _EVENT)
    place = builder.sext(write.load(builder.add(places, builder.mul(number, _LONG(4))), _INT), _LONG)
    hidden = builder.fadd(offset, write.of_row(table, place), flags=_FAST)
    hidden = write.multiply_add(slopes, write.everywhere(event, 0), hidden)
    hidden = builder.select(builder.fcmp_ordered(">", hidden, zero, flags=_FAST), hidden, zero)
    longer = [write.multiply_add(hidden, write.everywhere(event, k + 1), sums[k]) for k in range(MOMENTS)]
    following = builder.add(number, _LONG(1))
    for now, first, later in zip([number, *sums], [_LONG(0)] + [zero] * MOMENTS, [following, *longer], strict=True):
        now.add_incoming(first, before)
        now.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)

    builder.position_at_end(after)
    mixed = write.load(beta)
    for k in range(MOMENTS):
        mixed = write.multiply_add(write.of_row(alpha, _LONG(k)), longer[k], mixed)
    builder.store(mixed, builder.inttoptr(image, ir.PointerType(_VECTOR)), align=4)
    return context.get_dummy_value()
