"""What may happen to bytes on their way, apart from all seals."""

import torch


def damaged(message, source):
    """Bytes changed, bits flipped, the end cut off or more put behind it; often several of these."""
    message = bytearray(message)
    for _ in range(1 + int(3 * source.random())):
        _KINDS[int(4 * source.random())](message, _place(len(message), source), source)
    return bytes(message)


def as_tensor(message):
    """The bytes, as a decoder takes them."""
    return (
        torch.frombuffer(bytearray(message), dtype=torch.uint8)
        if message
        else torch.empty(0, dtype=torch.uint8)
    )


def _place(size, source):
    """Any, a third of the time one near the beginning, where headers are."""
    within = min(size, 40) if source.random() < 1 / 3 else size
    return int(within * source.random())


def _byte(message, place, source):
    if message:
        message[place] = int(256 * source.random())


def _bit(message, place, source):
    if message:
        message[place] ^= 1 << int(8 * source.random())


def _cut(message, place, source):
    if place:
        del message[-min(place, 1 + int(8 * source.random())) if source.random() < 0.5 else place :]


def _extended(message, place, source):
    message += source.randbytes(int(9 * source.random()))


_KINDS = (_byte, _bit, _cut, _extended)
