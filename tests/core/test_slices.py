import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.core.slices import CHUNK, SMALL, Slice, noted, owned, slice_pieces, slices
from laconic.core.technique import Bucket
from laconic.numerics import rng
from tests.support.by_hand import Group
from tests.support.owners import OwnerRounds

NUMEL = st.one_of(st.integers(0, 5000), st.integers(0, 3 * CHUNK), st.just(CHUNK))
SIZES = st.lists(NUMEL, max_size=6)
WORKERS = st.integers(1, 9)

RESNET_18 = {  # as torchvision has it, for ten classes
    "conv1.weight": 64 * 3 * 49,
    **{
        f"layer{i + 1}.{j}.{kind}": numel
        for i, width in enumerate((64, 128, 256, 512))
        for j, before in enumerate((max(64, width // 2), width))
        for kind, numel in {
            "conv1.weight": width * before * 9,
            "bn1.weight": width,
            "bn1.bias": width,
            "conv2.weight": width * width * 9,
            "bn2.weight": width,
            "bn2.bias": width,
            **({"downsample.0.weight": width * before} if before != width else {}),
        }.items()
    },
    "fc.weight": 512 * 10,
    "fc.bias": 10,
}
TRANSFORMER = {
    "embed.weight": 8000 * 256,
    **{
        f"blocks.{i}.{kind}": numel
        for i in range(6)
        for kind, numel in {
            "norm1.weight": 256,
            "attention.in_proj.weight": 3 * 256 * 256,
            "attention.in_proj.bias": 3 * 256,
            "attention.out_proj.weight": 256 * 256,
            "norm2.weight": 256,
            "mlp.0.weight": 4 * 256 * 256,
            "mlp.0.bias": 4 * 256,
            "mlp.2.weight": 4 * 256 * 256,
            "mlp.2.bias": 256,
        }.items()
    },
    "head.weight": 8000 * 256,
}


def _bucket(sizes, first=0):
    return Bucket(tuple(f"p{first + i}" for i in range(len(sizes))), tuple(sizes), torch.float32)


@given(numel=NUMEL, workers=WORKERS)
def test_slices_cover_a_parameter_exactly_once(numel, workers):
    at = 0
    for one in slices("w", numel, workers):
        assert one.start == at
        assert one.numel > 0
        assert 0 <= one.owner < workers
        at += one.numel
    assert at == numel


@given(numel=st.integers(1, 3 * CHUNK), workers=WORKERS)
def test_a_large_chunk_is_shared_equally_and_a_small_one_is_not_cut(numel, workers):
    cut = slices("w", numel, workers)
    for chunk, start in enumerate(range(0, numel, CHUNK)):
        inside = [one for one in cut if start <= one.start < start + CHUNK]
        size = min(CHUNK, numel - start)
        if size < SMALL * workers:
            assert inside == [Slice(start, size, (rng.number("w") + chunk) % workers)]
        else:
            assert [one.owner for one in inside] == [(k + rng.number("w")) % workers for k in range(workers)]
            assert all(one.numel % 64 == 0 for one in inside[:-1])
            assert all(abs(one.numel - size / workers) < 128 for one in inside)


def test_a_parameter_is_cut_as_it_was_yesterday():
    """Checkpoints hold what aggregators keep by these slices: a change would mix up whose is what."""
    first = rng.number("w") % 3
    assert slices("w", CHUNK + 3100, 3) == (
        Slice(0, 349504, first),
        Slice(349504, 349504, (first + 1) % 3),
        Slice(699008, 349568, (first + 2) % 3),
        Slice(CHUNK, 1024, first),
        Slice(CHUNK + 1024, 1024, (first + 1) % 3),
        Slice(CHUNK + 2048, 1052, (first + 2) % 3),
    )
    assert [one.numel for one in slices("w", 3 * SMALL, 3)] == [SMALL] * 3
    assert slices("w", 3 * SMALL - 1, 3) == (Slice(0, 3 * SMALL - 1, first),)


@given(numel=NUMEL, workers=WORKERS)
def test_owners_together_own_everything(numel, workers):
    assert sum(owned("w", numel, k, workers) for k in range(workers)) == numel
    assert sum(noted("w", numel, k, workers) for k in range(workers)) == len(slices("w", numel, workers))


def test_more_workers_than_coordinates_or_than_a_chunk_has_room_for():
    assert [owned("w", 3, k, 100) for k in range(100)].count(0) == 99
    numel, workers = 5 * CHUNK, CHUNK // SMALL + 1
    assert [one.numel for one in slices("w", numel, workers)] == [CHUNK] * 5
    assert len({one.owner for one in slices("w", numel, workers)}) == 5


def test_owners_of_a_model_have_nearly_equal_work():
    for model in (RESNET_18, TRANSFORMER):
        for workers in (2, 3, 4, 8):
            work = [sum(owned(n, s, k, workers) for n, s in model.items()) for k in range(workers)]
            assert max(work) <= 1.05 * sum(work) / workers


@given(sizes=SIZES, workers=WORKERS, numel=st.sampled_from([100, 5000, CHUNK, 2 * CHUNK]))
def test_pieces_cover_a_bucket_and_a_pieces_parts_cover_it(sizes, workers, numel):
    at = 0
    for piece in slice_pieces(_bucket(sizes), workers, numel=numel):
        assert piece.start == at
        at = piece.stop
        rows = sorted(row for k in range(workers) for row in piece.parts(k).tolist())
        inside = 0
        for start, width, *_ in rows:
            assert start == inside
            inside += width
        assert inside == piece.numel > 0
    assert at == sum(sizes)


def _by_parameter(pieces):
    """Who owns what of which parameter, and as which of its slices there."""
    found = set()
    for piece in pieces:
        names, sizes = piece.bucket.names, piece.bucket.sizes
        for k in range(piece.shards):
            for start, numel, index, ordinal in piece.parts(k).tolist():
                offset = piece.start + start - sum(sizes[:index])
                assert 0 <= offset < offset + numel <= sizes[index]
                found.add((names[index], offset, numel, k, ordinal))
    return found


@given(sizes=SIZES, workers=WORKERS)
def test_who_owns_a_coordinate_does_not_depend_on_the_bucket(sizes, workers):
    together = _by_parameter(slice_pieces(_bucket(sizes), workers, numel=CHUNK))
    apart = set()
    for i, size in enumerate(sizes):
        apart |= _by_parameter(slice_pieces(_bucket([size], i), workers, numel=1000))
    assert together == apart


@given(sizes=SIZES, workers=WORKERS)
def test_parts_are_the_owners_slices_numbered_within_their_parameter(sizes, workers):
    bucket = _bucket(sizes)
    expected = set()
    for name, size in zip(bucket.names, sizes, strict=True):
        for k in range(workers):
            own = [one for one in slices(name, size, workers) if one.owner == k]
            expected |= {(name, one.start, one.numel, k, ordinal) for ordinal, one in enumerate(own)}
    assert _by_parameter(slice_pieces(bucket, workers, numel=CHUNK)) == expected


@given(sizes=SIZES, workers=WORKERS, numel=st.sampled_from([100, 5000, CHUNK]))
def test_spans_of_all_pieces_tile_what_a_worker_keeps_of_a_bucket(sizes, workers, numel):
    bucket = _bucket(sizes)
    pieces = slice_pieces(bucket, workers, numel=numel)
    for k in range(workers):
        kept = noting = 0
        for piece in pieces:
            assert piece.owned(k) == slice(kept, kept + int(piece.parts(k)[:, 1].sum()))
            assert piece.noted(k) == slice(noting, noting + len(piece.parts(k)))
            kept, noting = piece.owned(k).stop, piece.noted(k).stop
        named = list(zip(bucket.names, sizes, strict=True))
        assert kept == sum(owned(name, size, k, workers) for name, size in named)
        assert noting == sum(noted(name, size, k, workers) for name, size in named)


@given(sizes=SIZES, workers=WORKERS)
def test_no_shard_is_wider_than_the_pieces_width(sizes, workers):
    for piece in slice_pieces(_bucket(sizes), workers, numel=CHUNK):
        shards = [int(piece.parts(k)[:, 1].sum()) for k in range(workers)]
        assert max(shards) == piece.width
        assert piece.padding == sum(piece.width - shard for shard in shards)


@given(sizes=SIZES, numel=st.sampled_from([100, 5000, CHUNK, 2 * CHUNK]))
def test_a_chunk_never_straddles_two_pieces(sizes, numel):
    bucket = _bucket(sizes)
    stops = {piece.stop for piece in slice_pieces(bucket, 2, numel=numel)}
    ends, at = set(), 0
    for size in sizes:
        ends |= {at + min(size, offset + CHUNK) for offset in range(0, size, CHUNK)}
        at += size
    assert stops <= ends


@given(sizes=st.lists(NUMEL, max_size=12))
def test_no_piece_is_huge_and_none_is_tiny(sizes):
    """Two neighbors a and b are better two than one if 2ab is at least the square of a fair part.

    That is 0.75 to 1.25 chunks, where there are several pieces; the halves of a piece differ by at most a chunk.
    """
    pieces = [piece.numel / CHUNK for piece in slice_pieces(_bucket(sizes), 4, numel=CHUNK)]
    huge = (2 * 1.25**2 + 1) ** 0.5
    tiny = 0.75**2 / (2 * huge)
    assert max(pieces, default=0) <= huge
    assert len(pieces) == 1 or min(pieces, default=1) >= tiny


def test_small_parameters_beside_large_ones_make_no_pieces_of_their_own():
    for sizes in ([10, CHUNK, CHUNK], [CHUNK, 64, 64, CHUNK], [CHUNK // 2, CHUNK, 64, CHUNK, CHUNK // 2]):
        for numel in (CHUNK // 8, CHUNK):
            pieces = slice_pieces(_bucket(sizes), 4, numel=numel)
            assert len(pieces) >= 2
            assert min(piece.numel for piece in pieces) >= CHUNK // 2


def test_pieces_of_many_parameters_are_of_nearly_equal_size():
    pieces = slice_pieces(_bucket([590_000, 1024, 262_144, 256] * 10), 8, numel=CHUNK)
    assert {piece.numel for piece in pieces} == {590_000 + 1024 + 262_144 + 256}


def test_an_empty_bucket_has_no_pieces():
    assert slice_pieces(_bucket([]), 4, numel=CHUNK) == []
    assert slice_pieces(_bucket([0, 0]), 4, numel=CHUNK) == []


def test_a_piece_is_known_by_its_value():
    first, second = (slice_pieces(_bucket([5000, 0, 7]), 4, numel=CHUNK) for _ in range(2))
    assert first[0].parts(0) is first[0].parts(0)
    assert first == second
    assert hash(first[0]) == hash(second[0])


def test_what_aggregators_keep_does_not_depend_on_buckets():
    """Five steps in one bucket, in two, and in two after the first step, as DDP does it."""
    sizes, workers = (9000, 0, 700, 1, 8192), 4
    one, halves = [_bucket(sizes)], [_bucket(sizes[3:], 3), _bucket(sizes[:3])]
    plans = {"one": [one] * 5, "halves": [halves] * 5, "rebuilt": [one, *[halves] * 4]}
    outcomes = {name: _run(plan, sizes, workers) for name, plan in plans.items()}
    for results, kept in outcomes.values():
        assert torch.equal(results, outcomes["one"][0])
        for mine, same in zip(kept, outcomes["one"][1], strict=True):
            assert all(torch.equal(mine[kind][n], same[kind][n]) for kind in same for n in same[kind])


def _run(plan, sizes, workers):
    """The results of all steps, and what every worker keeps by parameter."""
    group = Group(OwnerRounds(numel=2000), workers)
    results = torch.zeros(len(plan), sum(sizes))
    for step, buckets in enumerate(plan):
        gradients = torch.randn(workers, sum(sizes), generator=torch.Generator().manual_seed(step))
        for bucket in buckets:
            first = sum(sizes[: int(bucket.names[0][1:])])
            span = slice(first, first + bucket.numel)
            results[step, span] = group.reduce(bucket, list(gradients[:, span]))
    return results, [memory.values() for memory in group.memories]
