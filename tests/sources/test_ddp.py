"""Gradients of a bucket as one vector, where they are one."""

import torch

from laconic.sources import ddp


def test_neighbours_are_one_vector_without_a_copy():
    bucket = torch.arange(12.0)
    joined = ddp.joined([bucket[2:8].view(2, 3), bucket[8:8], bucket[8:11]])
    assert joined.tolist() == [*range(2, 11)]
    joined.zero_()
    assert bucket.tolist() == [0, 1, *[0] * 9, 11]


def test_gaps_another_order_and_other_layouts_are_not():
    bucket = torch.arange(12.0)
    assert ddp.joined([bucket[:4], bucket[5:]]) is None
    assert ddp.joined([bucket[4:], bucket[:4]]) is None
    assert ddp.joined([bucket[:6].view(2, 3).t(), bucket[6:]]) is None
