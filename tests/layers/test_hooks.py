"""Hooks are their own module's, and not those of its copies."""

import copy
import pickle

from torch import nn

from laconic.layers.hooks import Hook, nothing


def test_a_copy_or_what_was_saved_has_a_hook_that_does_nothing():
    layer, called = nn.Identity(), []
    layer.register_forward_hook(Hook(lambda *_: called.append(1)))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert [*other._forward_hooks.values()] == [nothing]
        assert other(3) == 3
    assert layer(3) == 3
    assert called == [1]


def test_a_hook_says_what_is_called_says():
    layer = nn.Identity()
    layer.register_forward_hook(Hook(lambda _module, _arguments, output: 2 * output))
    assert layer(3) == 6
