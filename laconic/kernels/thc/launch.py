"""THC's ops on CUDA: triton.py and triton_combine.py have the kernels."""

from __future__ import annotations

import torch
import triton
from torch.utils.weak import WeakIdKeyDictionary

from laconic.kernels import thc as reference
from laconic.kernels.thc import triton as kernels
from laconic.kernels.thc import triton_combine

REGISTERS = 1 << 16
"""Of a multiprocessor, for all its threads."""
EXACT = 1 << 24
"""Up to here fp32 has every integer, and adds them faster."""
VECTOR = 4
"""Values that a thread loads at once where all blocks start at multiples of it."""

_tiles, _lookups = WeakIdKeyDictionary(), WeakIdKeyDictionary()


def thc_norms(
    grad: torch.Tensor, residual: torch.Tensor | None, chart: torch.Tensor, norms: torch.Tensor
) -> None:
    """`norms` are the blocks' norms, infinite where one is not finite."""
    tile, align = _tile(chart)
    with torch.cuda.device_of(grad):
        kernels.norms[(len(chart),)](grad, residual, chart, norms, tile, align, num_warps=_warps(tile, 16))


def thc_encode(
    grad: torch.Tensor,
    residual: torch.Tensor | None,
    norms: torch.Tensor,
    chart: torch.Tensor,
    table: torch.Tensor,
    granularity: int,
    threshold: float,
    shared: int,
    own: int,
    bits: int,
    every: int,
    codes: torch.Tensor,
    new: torch.Tensor | None,
    quality: torch.Tensor,
) -> None:
    """`codes` are the packed codes, `new` what they do not say, `quality` as the reference describes it."""
    tile, align = _tile(chart)
    field = bits if (granularity << 16 + bits) < 1 << 31 else 0
    packed = codes if codes.is_contiguous() else codes.contiguous()
    with torch.cuda.device_of(grad):
        kernels.encode[(len(chart),)](
            grad,
            residual,
            norms,
            chart,
            _lookup(table, granularity, field),
            granularity,
            reference.UNIT * granularity / (2 * threshold),
            2 * threshold / granularity,
            _signed(shared),
            _signed(own),
            own % every,
            packed,
            new,
            quality,
            BITS=bits,
            TINY=reference.TINY,
            EVERY=every,
            NODES=triton.next_power_of_2(granularity + 1),
            FIELD=field,
            EVEN=packed.data_ptr() % 2 == 0,
            LOG=tile.bit_length() - 1,
            ALIGN=align,
            FLOAT=granularity * tile <= EXACT,
            PACKED=min(9, (15 - granularity.bit_length()) // 3 * 3),
            **_launch(tile, values=16, registers=64),
        )
    if packed is not codes:
        codes.copy_(packed)


def thc_combine(
    messages: torch.Tensor, table: torch.Tensor, bits: int, lane: int, reply: torch.Tensor
) -> None:
    """`reply` has the sums of the codes' integers, packed, and behind them the number of messages."""
    messages = messages if messages.stride(1) == 1 else messages.contiguous()
    groups, tile = messages.shape[1] // bits, 256
    with torch.cuda.device_of(reply):
        triton_combine.combine[(triton.cdiv(groups, tile),)](
            messages, messages.stride(0), len(messages), table, reply, groups, bits, lane, tile
        )


def thc_decode(
    replies: torch.Tensor,
    norms: torch.Tensor,
    chart: torch.Tensor,
    granularity: int,
    threshold: float,
    shared: int,
    lane: int,
    grad: torch.Tensor,
) -> None:
    """`grad` is the mean of what the contributors' codes say."""
    replies, (tile, align) = replies.contiguous(), _tile(chart)
    width = (replies.shape[1] - reference.COUNT_BYTES) * 8 // lane
    with torch.cuda.device_of(grad):
        kernels.decode[(len(chart),)](
            replies,
            width,
            norms,
            chart,
            granularity,
            2 * threshold / granularity,
            _signed(shared),
            grad,
            LANE=lane,
            WORDS=lane == 8 and replies.data_ptr() % 4 == 0,
            NARROW=width < tile,
            TILE=tile,
            ALIGN=align,
            FLOAT=tile << lane <= EXACT,
            **_launch(tile, values=64, registers=96),
        )


def _tile(chart: torch.Tensor) -> tuple[int, int]:
    """The largest size in the chart, and what all starts are multiples of; the device is asked once."""
    if chart not in _tiles:
        odd = (chart[:, [reference.START, reference.NUMEL]] % VECTOR != 0).any()
        largest, odd = torch.stack([chart[:, reference.SIZE].max(), odd]).tolist()
        _tiles[chart] = max(64, largest), 1 if odd else VECTOR
    return _tiles[chart]


def _lookup(table: torch.Tensor, granularity: int, field: int) -> torch.Tensor:
    """An entry for every node of the grid, and behind these the codes of the table's integers; made once.

    From the top an entry has T[k], T[k + 1] - T[k] and in the lowest `field` bits k, the code below.
    """
    if table not in _lookups:
        nodes = torch.arange(triton.next_power_of_2(granularity + 1), device=table.device)
        code = torch.searchsorted(table, nodes, right=True) - 1
        below = code.clamp(max=len(table) - 2)
        entry = table[below] << 16 + field | (table[below + 1] - table[below]) << field
        _lookups[table] = torch.cat([entry | below if field else entry, code]).int()
    return _lookups[table]


def _signed(key: int) -> int:
    """The key's 32 bits as an int32, so that every key has the same compiled kernel."""
    return key - (key >> 31 << 32)


def _warps(tile: int, values: int) -> int:
    """Warps whose threads have so many values each."""
    return min(32, max(1, tile // (32 * values)))


def _launch(tile: int, values: int, registers: int) -> dict[str, int]:
    """Options for a kernel; nothing is fused, as the reference rounds products before it adds."""
    warps = _warps(tile, values)
    return {
        "STAGES": values.bit_length() - 1,
        "num_warps": warps,
        "maxnreg": min(registers, REGISTERS // (32 * warps)),
        "enable_fp_fusion": False,
    }
