import torch

from laconic.state import State
from laconic.technique import Bucket, Tally

CPU = torch.device("cpu")
ONE = Bucket(("a", "b", "c"), (2, 3, 1), torch.float32)
SPLIT = [Bucket(("c", "a"), (1, 2), torch.float32), Bucket(("b",), (3,), torch.float32)]


def _written(state, bucket, values):
    state.memory(bucket, CPU)["residual"].new.copy_(torch.tensor(values))


def test_memory_starts_at_zero():
    assert State(["residual"]).memory(ONE, CPU)["residual"].old.tolist() == [0] * 6


def test_what_is_written_holds_only_after_a_commit():
    state = State(["residual"])
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.rollback()
    assert state.memory(ONE, CPU)["residual"].old.tolist() == [0] * 6
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.commit()
    assert state.memory(ONE, CPU)["residual"].old.tolist() == [1, 2, 3, 4, 5, 6]


def test_parameters_take_their_memory_along_when_buckets_are_rebuilt():
    state = State(["residual"])
    _written(state, ONE, [1.0, 2, 3, 4, 5, 6])
    state.commit()
    assert state.memory(SPLIT[0], CPU)["residual"].old.tolist() == [6, 1, 2]
    assert state.memory(SPLIT[1], CPU)["residual"].old.tolist() == [3, 4, 5]
    assert state._flat.keys() == set(SPLIT)


def test_values_are_copies_by_name_and_load_in_other_buckets():
    state = State(["residual"])
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
    other = State(["residual"])
    other.load(values)
    assert other.values()["residual"]["b"].tolist() == [3, 4, 5]
    assert other.memory(SPLIT[0], CPU)["residual"].old.tolist() == [6, 1, 2]


def test_loading_replaces_all_that_was_there():
    state = State(["residual"])
    _written(state, ONE, [1.0] * 6)
    state.commit()
    state.load({"residual": {"a": torch.tensor([7.0, 8.0])}})
    assert state.memory(ONE, CPU)["residual"].old.tolist() == [7, 8, 0, 0, 0, 0]


def test_without_kinds_there_is_nothing():
    state = State([])
    assert state.memory(ONE, CPU) == {}
    assert state.values() == {}


def _tallied():
    return State([], {"seen": Tally((2,), fades=0.5)})


def test_a_step_adds_to_a_tally_that_fades():
    state = _tallied()
    for _ in range(2):
        for piece in (1.0, 3.0):  # two pieces of one step
            state.tallies["seen"].new.add_(torch.tensor([piece, 0]))
        state.commit()
    assert state.tallies["seen"].old.tolist() == [0.5 * 4 + 4, 0]


def test_a_step_that_is_not_taken_leaves_tallies_alone():
    state = _tallied()
    state.tallies["seen"].new.add_(1)
    state.rollback()
    state.commit()
    assert state.tallies["seen"].old.tolist() == [0, 0]


def test_a_loaded_tally_goes_on_and_others_begin_anew():
    state = _tallied()
    state.load_tallies({"seen": torch.tensor([2.0, 3.0])})
    assert state.tallies["seen"].old.tolist() == [2, 3]
    state.load_tallies({})
    assert state.tallies["seen"].old.tolist() == [0, 0]
