"""Work for THC's ops, and the check that a backend gives the reference's bits."""

import torch

from laconic.core.blocks import block_pieces
from laconic.core.technique import Bucket
from laconic.kernels import thc as ops

SHARED, OWN = 0x9E3779B9, 0xFFFFFF00  # beyond an int32


class Work:
    """One piece with everything that the ops take; a backend gives a function for the name of an op."""

    def __init__(
        self, technique, workers=3, sizes=(5130, 24, 1, 9000), dtype=torch.float32, scale=1.0, device="cpu"
    ):
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(0)
        bucket = Bucket(tuple(f"p{i}" for i in range(len(sizes))), tuple(sizes), dtype)
        (piece,) = block_pieces(bucket, workers, block=technique.block, width=1 << 20)
        self.technique, self.piece, self.grid = technique, piece, technique.grid(workers)
        self.chart = piece.chart(self.device)
        self.table = torch.tensor(self.grid.table, device=self.device)
        self.grad = (scale * torch.randn(workers, piece.numel, generator=generator)).to(self.device, dtype)
        self.residual = None
        if technique.error_feedback:
            self.residual = (0.3 * scale * torch.randn(workers, piece.numel, generator=generator)).to(
                self.device
            )

    def old(self, worker):
        return None if self.residual is None else self.residual[worker]

    def norms(self, backend):
        rows = torch.empty(len(self.grad), len(self.chart), device=self.device)
        for worker, row in enumerate(rows):
            backend("thc_norms")(self.grad[worker], self.old(worker), self.chart, row)
        return rows

    def encode(self, backend, norms, worker=0, every=2, apart=0):
        """With rows `apart` there are so many bytes behind each."""
        packed = self.piece.width * self.technique.bits // 8
        room = torch.zeros(self.piece.shards, packed + apart, dtype=torch.uint8, device=self.device)
        codes = room[:, :packed]
        new = None if self.residual is None else torch.full_like(self.residual[0], 7.0)
        quality = torch.full((len(self.chart), 4), 7.0, device=self.device)
        backend("thc_encode")(
            self.grad[worker],
            self.old(worker),
            norms,
            self.chart,
            self.table,
            self.grid.granularity,
            self.grid.threshold,
            SHARED,
            OWN + worker,
            self.technique.bits,
            every,
            codes,
            new,
            quality,
        )
        assert not room[:, packed:].any()
        return codes, new, quality

    def combine(self, backend, messages):
        reply = self.piece.width * self.grid.lane // 8 + ops.COUNT_BYTES
        reply = torch.empty(reply, dtype=torch.uint8, device=self.device)
        backend("thc_combine")(messages, self.table, self.technique.bits, self.grid.lane, reply)
        return reply

    def decode(self, backend, replies, norms):
        grad, grid = torch.full_like(self.grad[0], 7.0), self.grid
        backend("thc_decode")(
            replies, norms, self.chart, grid.granularity, grid.threshold, SHARED, grid.lane, grad
        )
        return grad

    def replies(self, backend, norms, workers):
        """What all shards' combiners say of these workers' messages."""
        messages = [self.encode(backend, norms, worker)[0] for worker in workers]
        return torch.stack([self.combine(backend, shard) for shard in torch.stack(messages, dim=1)])


def reference(name):
    """The PyTorch reference, as a backend."""
    return getattr(ops, name).reference


def dispatched(name):
    """Whatever serves the device, as a backend."""
    return getattr(ops, name)


def _apart(rows):
    """The same rows with something between them, as messages have their seals."""
    return torch.nn.functional.pad(rows, (0, 8), value=255)[:, : rows.shape[1]]


def check(work, backend, equal=torch.equal):
    """Every op equals its reference, each on what the reference gave so far; `equal` compares results.

    Of many workers and shards, the first and the last tell as much as all.
    """
    norms = work.norms(reference)
    assert torch.allclose(work.norms(backend), norms, rtol=1e-5)
    norms = norms.amax(0)
    messages = []
    for worker in range(len(work.grad)):
        codes, new, quality = work.encode(reference, norms, worker)
        messages.append(codes)
        if worker in (0, len(work.grad) - 1):
            ours, our_new, our_quality = work.encode(backend, norms, worker, apart=8 * (worker > 0))
            assert torch.equal(ours, codes)
            assert (new is None and our_new is None) or torch.equal(our_new, new)
            assert torch.allclose(our_quality, quality, rtol=1e-4)
    shards = torch.stack(messages, dim=1)
    replies = torch.stack([work.combine(reference, shard) for shard in shards])
    for place, shard in ((0, shards[0]), (-1, _apart(shards[-1]))):
        assert torch.equal(work.combine(backend, shard), replies[place])
    for rows in (replies, _apart(replies)):
        assert equal(work.decode(backend, rows, norms), work.decode(reference, replies, norms))
