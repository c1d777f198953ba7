import pytest
import torch

from laconic.core.memory import Memory
from laconic.core.technique import Bucket, Piece, Side, Slot

CPU = torch.device("cpu")
ONE = Bucket(("a", "b", "c"), (2, 3, 1), torch.float32)
SPLIT = [Bucket(("c", "a"), (1, 2), torch.float32), Bucket(("b",), (3,), torch.float32)]


def _written(state, bucket, values):
    state.of(bucket, CPU)["residual"].new.copy_(torch.tensor(values))


def test_memory_starts_at_zero():
    assert Memory({"residual": Slot()}, 0).of(ONE, CPU)["residual"].old.tolist() == [0] * 6


def test_what_is_written_holds_only_after_a_commit():
    state = Memory({"residual": Slot()}, 0)
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.rollback()
    assert state.of(ONE, CPU)["residual"].old.tolist() == [0] * 6
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.commit()
    assert state.of(ONE, CPU)["residual"].old.tolist() == [1, 2, 3, 4, 5, 6]


def test_parameters_take_their_memory_along_when_buckets_are_rebuilt():
    state = Memory({"residual": Slot()}, 0)
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.commit()
    assert state.of(SPLIT[0], CPU)["residual"].old.tolist() == [6, 1, 2]
    assert state.of(SPLIT[1], CPU)["residual"].old.tolist() == [3, 4, 5]
    assert state._flat.keys() == set(SPLIT)


def test_values_are_copies_by_name_and_load_in_other_buckets():
    state = Memory({"residual": Slot()}, 0)
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.commit()
    values = state.values()
    _written(state, ONE, [0.0] * 6)
    state.commit()
    assert {name: value.tolist() for name, value in values["residual"].items()} == {
        "a": [1, 2],
        "b": [3, 4, 5],
        "c": [6],
    }
    other = Memory({"residual": Slot()}, 0)
    other.load(values)
    assert other.values()["residual"]["b"].tolist() == [3, 4, 5]
    assert other.of(SPLIT[0], CPU)["residual"].old.tolist() == [6, 1, 2]


def test_loading_replaces_all_that_was_there():
    state = Memory({"residual": Slot()}, 0)
    _written(state, ONE, [1.0] * 6)
    state.commit()
    state.load({"residual": {"a": torch.tensor([7.0, 8.0])}})
    assert state.of(ONE, CPU)["residual"].old.tolist() == [7, 8, 0, 0, 0, 0]


def test_without_kinds_there_is_nothing():
    state = Memory({}, 0)
    assert state.of(ONE, CPU) == {}
    assert state.values() == {}


def _kept_by(count):
    return Slot(Side.AGGREGATOR, lambda name, numel, worker: count(name, numel))


def _keeping():
    """Of every parameter twice as many values as coordinates, less three for `a`: 1, 6 and 2."""
    return Memory(
        {"residual": Slot(), "kept": _kept_by(lambda name, numel: 2 * numel - 3 * (name == "a"))}, 0
    )


def _kept(state, bucket):
    return state.of(bucket, CPU)["kept"]


def _with_values():
    state = _keeping()
    _kept(state, ONE).new.copy_(torch.arange(1.0, 10))
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    return state


def test_what_is_kept_has_as_many_values_as_were_asked_for():
    assert _kept(_keeping(), ONE).old.tolist() == [0] * 9
    assert _kept(_keeping(), ONE).new.dtype == torch.float32
    assert [len(_kept(_keeping(), bucket).old) for bucket in SPLIT] == [3, 6]
    assert _kept(_keeping(), Bucket(("b",), (0,), torch.float32)).old.tolist() == []


def test_what_is_kept_holds_only_after_a_commit():
    state = _with_values()
    state.rollback()
    assert _kept(state, ONE).old.tolist() == [0] * 9
    state = _with_values()
    state.commit()
    assert _kept(state, ONE).old.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_what_is_kept_moves_with_its_parameter():
    state = _with_values()
    state.commit()
    assert _kept(state, SPLIT[0]).old.tolist() == [8, 9, 1]
    assert _kept(state, SPLIT[1]).old.tolist() == [2, 3, 4, 5, 6, 7]
    assert state.of(SPLIT[0], CPU)["residual"].old.tolist() == [6, 1, 2]


def test_what_is_kept_is_among_the_values_and_loads_in_other_buckets():
    state = _with_values()
    state.commit()
    values = state.values()
    assert {name: value.tolist() for name, value in values["kept"].items()} == {
        "a": [1],
        "b": [2, 3, 4, 5, 6, 7],
        "c": [8, 9],
    }
    other = _keeping()
    other.load(values)
    assert _kept(other, SPLIT[0]).old.tolist() == [8, 9, 1]


def test_a_technique_may_keep_something_and_remember_nothing():
    state = Memory({"kept": _kept_by(lambda name, numel: 1)}, 0)
    _kept(state, ONE).new.fill_(7)
    state.commit()
    assert _kept(state, SPLIT[0]).old.tolist() == [7, 7]


def test_values_of_another_size_are_refused():
    state = _keeping()
    numels = {"residual": 2, "kept": 1, "unknown": 9}
    state.check({kind: {"a": torch.zeros(numel)} for kind, numel in numels.items()}, {"a": 2})
    with pytest.raises(ValueError, match="has 2 values for a, but the model needs 1; load one of the same"):
        state.check({"kept": {"a": torch.zeros(2)}}, {"a": 2})
    with pytest.raises(ValueError, match="has 1 values for z, but the model has no such parameter"):
        state.check({"residual": {"z": torch.zeros(1)}}, {"a": 2})
    state.load({"kept": {"b": torch.zeros(3)}})
    with pytest.raises(ValueError, match="has 3 values for b, but the model needs 6"):
        state.of(ONE, CPU)


def test_a_piece_gets_its_span_of_what_is_remembered_and_all_that_is_kept():
    state = _with_values()
    memory = state.of(ONE, CPU)
    own, theirs = state.part(memory, Piece(ONE, 2, 5, 1, 3))
    assert own["residual"].new.tolist() == [3, 4, 5]
    assert theirs["kept"].new.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    theirs["kept"].new[1] = 0
    assert memory["kept"].new[1] == 0


def test_what_is_kept_lies_where_messages_are_combined():
    memory = _keeping().of(ONE, CPU, torch.device("meta"))
    assert memory["residual"].old.device == CPU
    assert memory["kept"].old.device.type == "meta"


def _seen(state):
    return state.part({}, Piece(ONE, 0, 6, 1, 6)).aggregator["seen"]


def _tallied():
    return Memory({"seen": Slot(Side.AGGREGATOR, tally=(2,), fades=0.5)}, 0)


def test_a_step_adds_to_a_tally_that_fades():
    state = _tallied()
    for _ in range(2):
        for piece in (1.0, 3.0):  # two pieces of one step
            _seen(state).new.add_(torch.tensor([piece, 0]))
        state.commit()
    assert state.tallies()["seen"].tolist() == [0.5 * 4 + 4, 0]


def test_a_step_that_is_not_taken_leaves_tallies_alone():
    state = _tallied()
    _seen(state).new.add_(1)
    state.rollback()
    state.commit()
    assert state.tallies()["seen"].tolist() == [0, 0]


def test_a_loaded_tally_goes_on_and_others_begin_anew():
    state = _tallied()
    state.load({}, {"seen": torch.tensor([2.0, 3.0])})
    assert state.tallies()["seen"].tolist() == [2, 3]
    state.load({}, {})
    assert state.tallies()["seen"].tolist() == [0, 0]


def test_what_has_become_known_has_room_and_what_was_known_stays():
    state = Memory({"left": Slot(count=lambda name, numel, worker: 0)}, 0)
    state.of(ONE, CPU)
    state.commit()
    state.rebind({"left": Slot(count=lambda name, numel, worker: numel)})
    state.of(ONE, CPU)["left"].new.copy_(torch.arange(6.0))
    state.commit()
    state.rebind({"left": Slot(count=lambda name, numel, worker: numel)})
    assert state.of(SPLIT[1], CPU)["left"].old.tolist() == [2, 3, 4]


def test_how_much_an_aggregator_keeps_may_depend_on_who_it_is():
    counts = [Memory({"kept": Slot(Side.AGGREGATOR, lambda n, numel, w: w)}, worker) for worker in (0, 2)]
    assert [len(memory.of(ONE, CPU)["kept"].old) for memory in counts] == [0, 6]


def _its_first(name, values, factor):
    values[:1].mul_(factor)  # whatever a slot says


def test_what_is_committed_or_loaded_follows_the_scale_as_its_slot_says():
    state = Memory({"residual": Slot(), "kept": Slot(rescale=_its_first)}, 0)
    values = {name: {"a": torch.tensor([1.0, 2.0])} for name in ("residual", "kept")}
    state.load(values, scale=2.0)
    state.rescale(4.0)
    for slot, expected in (("residual", [2, 4]), ("kept", [2, 2])):
        assert state.values()[slot]["a"].tolist() == expected
        assert values[slot]["a"].tolist() == [1, 2]
    cells = state.of(Bucket(("a",), (2,), torch.float32), CPU)
    state.rescale(1.0)
    assert cells["residual"].old.tolist() == [0.5, 1]
    assert cells["kept"].old.tolist() == [0.5, 2]


def test_a_scale_that_was_not_known_is_taken_for_the_next_one():
    state = Memory({"residual": Slot()}, 0)
    state.load({"residual": {"a": torch.tensor([1.0, 2.0])}})
    state.rescale(None)
    state.rescale(8.0)
    state.rescale(None)
    assert state.values()["residual"]["a"].tolist() == [1, 2]
    state.rescale(16.0)
    assert state.values()["residual"]["a"].tolist() == [2, 4]
