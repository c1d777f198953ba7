import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from laconic.layers.taps import Taps, eligible

GENERATOR = torch.Generator()


def _random(*shape):
    return torch.randn(*shape, generator=GENERATOR.manual_seed(sum(shape)))


def _product(taps, module, name="layer"):
    rows = taps.take(name)
    return (rows.deltas.T @ rows.inputs).view_as(module.weight), rows


def _check(taps, module):
    """Rows are all there is to the gradients of a weight and its bias."""
    product, rows = _product(taps, module)
    assert torch.allclose(product, module.weight.grad, rtol=1e-4, atol=1e-5)
    if module.bias is not None:
        assert torch.allclose(rows.deltas.sum(0), module.bias.grad, rtol=1e-4, atol=1e-5)
    return rows


@pytest.mark.parametrize("shape", [(6,), (4, 6), (3, 4, 6), (2, 3, 4, 6)], ids=str)
def test_rows_multiply_to_a_linear_layers_gradient_whatever_the_leading_dimensions(shape):
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    layer(_random(*shape)).square().sum().backward()
    assert len(_check(taps, layer).inputs) == torch.Size(shape).numel() // 6


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"padding": (1, 2)}, {"dilation": 2}, {"bias": False, "kernel_size": 1}],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one image", "a batch"])
def test_rows_multiply_to_a_convolutions_gradient(options, batch):
    layer = nn.Conv2d(2, 4, **{"kernel_size": (3, 2), **options})
    taps = Taps({"layer": [layer]})
    layer(_random(*batch, 2, 8, 9)).square().sum().backward()
    _check(taps, layer)


def test_calls_of_one_layer_are_paired_with_what_came_back_for_them():
    layer = nn.Linear(5, 5)
    taps = Taps({"layer": [layer]})
    layer(torch.relu(layer(_random(4, 5)) * layer(_random(4, 5)))).square().sum().backward()
    assert len(_check(taps, layer).inputs) == 12


def test_modules_that_share_a_weight_are_one_layer():
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight, second.bias = first.weight, first.bias
    taps = Taps({"layer": [first, second]})
    second(torch.tanh(first(_random(4, 5)))).square().sum().backward()
    _check(taps, first)


def _tapped(layer):
    """Taps that are told when the layer's weight has its gradient, as they are at work."""
    taps = Taps({"layer": [layer]})
    layer.weight.register_post_accumulate_grad_hook(lambda _: taps.done("layer"))
    return taps


def test_backward_passes_add_up_until_rows_are_taken():
    layer = nn.Linear(6, 5)
    taps = _tapped(layer)
    for rows in (4, 3):
        layer(_random(rows, 6)).square().sum().backward()
    assert len(_check(taps, layer).inputs) == 7
    assert taps.take("layer") is None


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_were_dropped_leave_no_rows(to_none):
    layer = nn.Linear(6, 5)
    taps = _tapped(layer)
    layer(_random(4, 6)).square().sum().backward()
    layer.zero_grad(set_to_none=to_none)
    layer(_random(3, 6)).square().sum().backward()
    assert len(_check(taps, layer).inputs) == 3


def test_nothing_can_be_added_to_gradients_whose_rows_were_taken():
    layer = nn.Linear(6, 5)
    taps = _tapped(layer)
    layer(_random(4, 6)).square().sum().backward()
    taps.take("layer")
    with pytest.raises(RuntimeError, match=r"layer still has the gradient of the last exchange"):
        layer(_random(4, 6)).square().sum().backward()


def test_rows_whose_gradient_the_weight_did_not_get_do_not_count():
    layer, inputs = nn.Linear(6, 5), _random(3, 6).requires_grad_()
    taps = _tapped(layer)
    torch.autograd.grad(layer(inputs).sum(), inputs)
    taken = []
    layer.weight.register_post_accumulate_grad_hook(lambda _: taken.append(taps.take("layer")))
    layer(_random(4, 6)).square().sum().backward()
    assert len(taken[0].inputs) == 4
    torch.autograd.grad(layer(inputs).sum(), inputs)  # with a gradient there, whose rows were taken
    layer.zero_grad()
    layer(_random(5, 6)).square().sum().backward()
    assert len(taken[1].inputs) == 5


def test_rows_without_loss_are_dropped():
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    targets = torch.tensor([[1, 2, -100], [4, -100, -100]])
    logits = layer(_random(2, 3, 6)).flatten(0, 1)
    nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-100).backward()
    assert len(_check(taps, layer).inputs) == 3


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6)], ids=str)
def test_an_activation_may_work_in_place(shape, bias):
    layer = nn.Linear(6, 5, bias)
    taps = Taps({"layer": [layer]})
    nn.ReLU(inplace=True)(layer(_random(*shape))).square().sum().backward()
    _check(taps, layer)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_has_its_rows_once(reentrant):
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    inputs = _random(4, 6).requires_grad_()
    checkpoint(lambda x: torch.tanh(layer(x)), inputs, use_reentrant=reentrant).square().sum().backward()
    assert len(_check(taps, layer).inputs) == 4


def test_a_layer_may_be_called_with_and_without_a_checkpoint():
    layer = nn.Linear(5, 5)
    taps = Taps({"layer": [layer]})
    inside = checkpoint(lambda x: torch.tanh(layer(x)), _random(4, 5), use_reentrant=False)
    layer(inside).square().sum().backward()
    assert len(_check(taps, layer).inputs) == 8


def test_an_input_may_be_given_by_name():
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    layer(input=_random(4, 6)).square().sum().backward()
    _check(taps, layer)


def test_half_precision_becomes_single():
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(_random(4, 6))
    output.square().sum().backward()
    product, rows = _product(taps, layer)
    assert {rows.inputs.dtype, rows.deltas.dtype} == {torch.float32}
    # autocast rounds weight, input, output and gradient to 8 bits each
    assert (product - layer.weight.grad).norm() < 2**-6 * layer.weight.grad.norm()


def test_what_is_not_trained_on_has_no_rows():
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    with torch.no_grad():
        layer(_random(4, 6))
    layer(_random(4, 6))
    assert taps.take("layer") is None


def test_layers_that_are_given_the_data_are_known():
    first, second = nn.Linear(6, 5), nn.Linear(5, 2)
    taps = Taps({"first": [first], "second": [second]})
    second(first(_random(4, 6))).sum().backward()
    assert taps.fed == {"first"}


def test_nothing_is_left_of_removed_taps():
    layer = nn.Linear(6, 5)
    taps = Taps({"layer": [layer]})
    taps.remove()
    layer(_random(4, 6)).square().sum().backward()
    assert taps.take("layer") is None
    assert not layer._forward_hooks


@pytest.mark.parametrize(
    ("module", "answer"),
    [
        (nn.Linear(2, 2), True),
        (nn.Conv2d(2, 2, 3), True),
        (nn.Conv2d(2, 2, 3, groups=2), False),
        (nn.Conv2d(2, 2, 3, padding="same"), False),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), False),
        (nn.Conv1d(2, 2, 3), False),
        (nn.Embedding(2, 2), False),
        (type("Scaled", (nn.Linear,), {})(2, 2), False),  # whatever it does with its weight
    ],
    ids=lambda value: str(value),
)
def test_only_plain_linear_layers_and_convolutions_have_rows(module, answer):
    assert eligible(module) is answer
