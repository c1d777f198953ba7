import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.core.place import Capability, Shards
from laconic.core.technique import Piece
from laconic.places.peers import Peers
from tests.support.altered import Altered
from tests.support.toys import flat, network, parallel, train
from tests.support.workers import WorkerError, run


class _Ragged:
    """Dense, with messages and replies of sizes that only their sender knows."""

    routes = (Shards(vary=True),)

    def cut(self, bucket, wire):
        width = -(-bucket.numel // self.workers)
        return [Piece(bucket, 0, bucket.numel, self.workers, width, Shards(vary=True))]

    def encode(self, turn, grad):
        rows = super().encode(turn, grad)
        junk = [torch.full((self._extra(turn, shard),), 7, dtype=torch.uint8) for shard in range(len(rows))]
        return [torch.cat([row, more]) for row, more in zip(rows, junk, strict=True)]

    def combine(self, desk, messages):
        for sender, message in enumerate(messages):
            assert len(message) == self._size(desk) + self._extra_of(desk.step, sender, desk.shard)
        reply = super().combine(desk, torch.stack([message[: self._size(desk)] for message in messages]))
        return torch.cat([reply, reply.new_full((5 * desk.shard,), 9)])

    def decode(self, turn, replies, grad):
        assert [len(reply) - self._size(turn) for reply in replies] == [5 * k for k in range(len(replies))]
        super().decode(turn, torch.stack([reply[: self._size(turn)] for reply in replies]), grad)

    def _size(self, turn):
        return turn.piece.width * 4

    def _extra(self, turn, shard):
        return self._extra_of(turn.step, turn.worker, shard)

    @staticmethod
    def _extra_of(step, sender, shard):
        return (3 * sender + 2 * shard + step) % 11


def _train(technique, place=laconic.Peers()):
    model = parallel()
    attachment = laconic.attach(model, technique, place=place)
    train(model, range(6))
    return flat(model), attachment.stats()


def test_messages_of_varying_size_arrive_whole():
    fixed, ragged = run(3, _train, laconic.Dense()), run(3, _train, Altered(laconic.Dense(), _Ragged))
    for (weights, _), (ragged_weights, _) in zip(fixed, ragged, strict=True):
        assert torch.equal(weights, ragged_weights)


class _Remembering:
    """THC that keeps what it sent and what it was asked to combine."""

    sent, combined = {}, {}

    def encode(self, turn, grad):
        messages = super().encode(turn, grad)
        self.sent[_place(turn)] = messages.clone()
        return messages

    def combine(self, desk, messages):
        assert _place(desk) not in self.combined
        self.combined[_place(desk)] = messages.clone()
        return super().combine(desk, messages)


def _place(turn):
    return turn.step, turn.piece.bucket.names, turn.piece.start


def _sent_and_combined():
    model = parallel()
    laconic.attach(model, Altered(laconic.THC(block=64), _Remembering))
    train(model, range(2))
    return _Remembering.sent, _Remembering.combined


def test_every_message_is_combined_exactly_once():
    """So no sum has one worker's codes twice or not at all."""
    results = run(3, _sent_and_combined)
    for worker, (_, combined) in enumerate(results):
        assert len(combined) > 2
        for place, messages in combined.items():
            assert torch.equal(messages, torch.stack([sent[place][worker] for sent, _ in results]))
        assert all(sent.keys() == combined.keys() for sent, _ in results)


def test_workers_agree_alike_directly_and_around_a_ring():
    direct, ring = (run(3, _train, laconic.THC(block=64), Peers(direct=most)) for most in (3, 2))
    for (weights, _), (ring_weights, _) in zip(direct, ring, strict=True):
        assert torch.equal(weights, ring_weights)
    assert (
        direct[0][1].sent > ring[0][1].sent
    )  # three workers pass 4/3 of the numbers around a ring, and tell 2


def test_everything_sent_is_received_by_somebody():
    for technique in (laconic.Dense(), Altered(laconic.Dense(), _Ragged), laconic.THC(block=64)):
        stats = [stats for _, stats in run(3, _train, technique)]
        assert sum(s.sent for s in stats) == sum(s.received for s in stats)


def test_the_meter_counts_both_directions_and_nothing_that_stays():
    workers = 3
    parameters = sum(p.numel() for p in network().parameters())
    stats = [stats for _, stats in run(workers, _train, laconic.Dense())]
    exact = 6 * 2 * (workers - 1) / workers * parameters * 4
    assert all(exact <= s.sent <= exact * 1.01 for s in stats)  # padding of a few coordinates a piece


class _OnlySums(laconic.Peers):
    offers = Capability.SUM


def _attach_to_a_place_that_cannot_combine():
    laconic.attach(parallel(), laconic.Dense(), place=_OnlySums())


def test_a_place_that_cannot_serve_a_technique_is_refused_when_attached():
    with pytest.raises(WorkerError, match=r"_OnlySums\(.*\) offers Capability.SUM, but Dense.* needs"):
        run(1, _attach_to_a_place_that_cannot_combine)


def _alone():
    return dist.get_world_size(), _train(laconic.Dense())[1].sent


def test_a_world_of_one_sends_nothing():
    assert run(1, _alone) == [(1, 0)]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_thc_looks_its_table_up_on_the_worker_where_a_place_only_adds(bits):
    """Bit for bit the same as where codes are looked up, on a grid with lanes of whole bytes."""
    technique = laconic.THC(
        block=64, bits=bits, granularity=255 if bits == 8 else 60, lane=16 if bits == 8 else 8
    )
    looked_up, added = run(3, _train, technique), run(3, _train, technique, _OnlySums())
    for (weights, _), (added_weights, _) in zip(looked_up, added, strict=True):
        assert torch.equal(weights, added_weights)


def _attach_coded_sums():
    laconic.attach(parallel(), laconic.THC(entropy=True), place=_OnlySums())


def test_what_cannot_be_added_is_refused_where_a_place_only_adds():
    with pytest.raises(WorkerError, match=r"offers Capability.SUM, but THC.* needs Capability.COMBINE"):
        run(1, _attach_coded_sums)
