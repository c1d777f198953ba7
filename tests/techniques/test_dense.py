import dataclasses

import pytest
import torch

from laconic import Dense
from laconic.core.place import Everybody
from laconic.core.technique import Bucket, Cell, Desk, Setting, Turn
from laconic.messages.seals import sealed
from laconic.techniques.dense import written

WIRE = 1 << 19


def _turn(technique, grad, workers=1, residual=None):
    (piece,) = technique.bind(Setting(workers)).cut(Bucket(("w",), (len(grad),), grad.dtype), WIRE)
    memory = {"residual": Cell(residual, torch.empty_like(residual))} if residual is not None else {}
    return Turn(piece, 0, 0, memory)


def _encoded(technique, turn, grad):
    return technique.bind(Setting(turn.piece.shards)).encode(turn, grad)


def test_original_is_message_plus_residual():
    grad, residual = torch.randn(100), torch.randn(100) * 0.01
    technique = Dense(dtype="bf16", error_feedback=True)
    turn = _turn(technique, grad, residual=residual)
    message = _encoded(technique, turn, grad).view(torch.bfloat16).flatten().float()
    assert torch.equal(message + turn.memory["residual"].new, grad + residual)


def test_error_feedback_makes_the_sum_of_results_follow_the_sum_of_gradients():
    technique, residual, total = Dense(dtype="bf16", error_feedback=True), torch.zeros(1), torch.zeros(1)
    grad = torch.tensor([1.001])  # rounds to 1.0 in bf16, always, without feedback
    for _ in range(1000):
        turn = _turn(technique, grad, residual=residual)
        total += _encoded(technique, turn, grad).view(torch.bfloat16).flatten().float()
        residual = turn.memory["residual"].new
    assert total.item() == pytest.approx(1001.0, abs=0.01)  # what is missing is at most one rounding


@pytest.mark.parametrize("numel", [12, 10, 1, 2])
def test_a_message_is_written_once_with_room_for_its_seal(numel):
    grad = torch.randn(numel)
    turn = _turn(Dense("fp32"), grad, workers=3)
    piece = dataclasses.replace(turn.piece, shards=3, width=4)
    message = written(grad, piece, torch.float32)
    assert sealed(message, range(3)).data_ptr() == message.data_ptr()
    values = torch.cat([grad, torch.zeros(12 - numel)])
    assert torch.equal(message.view(torch.float32), values.view(3, 4))


@pytest.mark.parametrize(
    ("wire", "grad", "bytes_each"),
    [
        ("fp32", torch.float32, 4),
        ("fp32", torch.bfloat16, 2),
        ("bf16", torch.float32, 2),
        ("fp16", torch.bfloat16, 2),
    ],
)
def test_a_message_is_never_wider_than_the_gradient(wire, grad, bytes_each):
    values = torch.randn(8192).to(grad)
    message = _encoded(Dense(dtype=wire), _turn(Dense(dtype=wire), values, 2), values)
    assert message.shape == (2, 4096 * bytes_each)


def test_everybody_hears_a_few_numbers_at_once():
    values = torch.randn(8)
    turn = _turn(Dense(), values, workers=3)
    assert turn.piece.route == Everybody(32)
    assert _encoded(Dense(), turn, values).shape == (1, 32)
    heard = torch.stack([values, 2 * values, 6 * values])
    Dense().bind(Setting(3)).decode(turn, heard.view(torch.uint8), values)
    assert torch.allclose(values, heard.mean(0))


def test_formats_of_one_width_are_not_exchanged_for_each_other():
    large = torch.full((2,), 2.0**17).bfloat16()  # beyond fp16
    message = _encoded(Dense(dtype="fp16"), _turn(Dense(dtype="fp16"), large), large)
    assert torch.equal(message.view(torch.bfloat16).flatten(), large)


def test_the_sum_is_taken_in_fp32():
    technique = Dense(dtype="bf16")
    grad = torch.tensor([256.0] + [1.0] * 256).bfloat16()  # in bf16, 256 + 1 is 256
    turn = _turn(technique, grad[:1], workers=1)
    messages = grad.view(-1, 1).view(torch.uint8)
    assert technique.bind(Setting(257)).combine(Desk(turn.piece, 0, 0), messages).view(
        torch.bfloat16
    ).item() == pytest.approx(512 / 257, rel=2**-8)


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="dtype 'int8' is not a wire format; use one of fp32, bf16, fp16"):
        Dense(dtype="int8")
