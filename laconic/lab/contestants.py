"""A row of a comparison from a short text: plain DDP, one of PyTorch's own hooks, or a technique of Laconic's.

ddp    fp16    powersgd:rank=2    dense    dense:dtype=bf16,error_feedback=true    dad:private=encoder.+head.

Behind an @ stands what the row trains with where that is not what all others do, as a technique may want a learning
rate of its own:

sign_vote:density=0.1@lr=0.001,momentum=0
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from laconic.sources.attach import attach
from laconic.techniques.crossover import Crossover
from laconic.techniques.dad import DAD, RankDAD
from laconic.techniques.dense import Dense
from laconic.techniques.edad import EDAD
from laconic.techniques.gennorm import GenNorm
from laconic.techniques.sign_vote import SignVote
from laconic.techniques.thc import THC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    from laconic.core.technique import Technique
    from laconic.sources.attachment import Attachment

Family = Literal["plain", "peer", "laconic"]


class Contestant(Protocol):
    """A way to exchange gradients that `compare` can put beside others."""

    @property
    def family(self) -> Family:
        """Plain DDP, a hook that comes with PyTorch, or Laconic."""

    @property
    def label(self) -> str:
        """A name for tables."""

    @property
    def ddp_options(self) -> dict[str, Any]:
        """What the DDP model must be built with."""

    def apply(self, model: DistributedDataParallel, optimizer: Optimizer) -> Attachment | None:
        """`model`, which `optimizer` trains, is trained in this way."""


@dataclass(frozen=True)
class Plain:
    """DDP without any hook."""

    family: ClassVar[Family] = "plain"
    label: ClassVar[str] = "plain DDP"
    ddp_options: ClassVar[dict[str, Any]] = {}

    def apply(self, model: DistributedDataParallel, optimizer: Optimizer) -> None:
        """Nothing is changed."""


@dataclass(frozen=True)
class Fp16:
    """PyTorch's fp16_compress_hook."""

    family: ClassVar[Family] = "peer"
    label: ClassVar[str] = "fp16 hook"
    ddp_options: ClassVar[dict[str, Any]] = {}

    def apply(self, model: DistributedDataParallel, optimizer: Optimizer) -> None:  # noqa: ARG002
        """The all-reduce is in fp16."""
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)


@dataclass(frozen=True)
class PowerSGD:
    """PyTorch's powerSGD_hook, from the earliest step that it allows."""

    rank: int = 2

    family: ClassVar[Family] = "peer"
    # On gloo it aborts with a second bucket.
    ddp_options: ClassVar[dict[str, Any]] = {"bucket_cap_mb": 1 << 20}

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} keeps nothing; use at least 1")

    @property
    def label(self) -> str:
        """The hook and its rank."""
        return f"PowerSGD, rank {self.rank}"

    def apply(self, model: DistributedDataParallel, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Gradients travel as factors of the given rank."""
        state = powerSGD_hook.PowerSGDState(
            model.process_group, matrix_approximation_rank=self.rank, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


@dataclass(frozen=True)
class Attached:
    """A technique of Laconic's."""

    technique: Technique

    family: ClassVar[Family] = "laconic"
    ddp_options: ClassVar[dict[str, Any]] = {}

    @property
    def label(self) -> str:
        """The technique, what differs from its defaults, and what is always said."""
        kind: Any = type(self.technique)
        changed = [
            f"{field.name}={_written(getattr(self.technique, field.name))}"
            for field in dataclasses.fields(kind)
            if getattr(self.technique, field.name) != field.default or field.metadata.get("labels")
        ]
        return " ".join([kind.__name__, *changed])

    def apply(self, model: DistributedDataParallel, optimizer: Optimizer) -> Attachment:
        """The technique is attached."""
        return attach(model, self.technique, optimizer=optimizer)


TECHNIQUES: dict[str, type[Any]] = {
    "crossover": Crossover,
    "dad": DAD,
    "dense": Dense,
    "edad": EDAD,
    "gennorm": GenNorm,
    "rank_dad": RankDAD,
    "sign_vote": SignVote,
    "thc": THC,
}
PEERS: dict[str, type[Any]] = {"ddp": Plain, "fp16": Fp16, "powersgd": PowerSGD}


TRAINING: dict[str, Callable[[str], Any]] = {"lr": float, "momentum": float, "optimizer": str}
"""What may stand behind an @."""


def parse(text: str) -> Contestant:
    """The contestant that `name` or `name:option=value,…` describes."""
    name, _, options = text.partition("@")[0].partition(":")
    kind = {**PEERS, **TECHNIQUES}.get(name)
    if kind is None:
        raise ValueError(f"unknown technique {name!r}{nearest(name, [*PEERS, *TECHNIQUES])}")
    made = kind(**dict(_option(kind, option) for option in options.split(",") if option))
    return Attached(made) if name in TECHNIQUES else made


def training(text: str) -> dict[str, Any]:
    """What the row trains with, of its own."""
    return dict(_training_option(option) for option in text.partition("@")[2].split(",") if option)


def _training_option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name not in TRAINING:
        raise ValueError(f"a row cannot have its own {name!r}{nearest(name, TRAINING)}")
    try:
        return name, TRAINING[name](value)
    except ValueError:
        raise ValueError(f"{name} takes a number, not {value!r}") from None


def nearest(word: str, known: Collection[str]) -> str:
    """The end of an error's sentence: the known word that was probably meant, and all of them."""
    close = get_close_matches(word, known, n=1)
    hint = f"; did you mean {close[0]!r}? " if close else "; "
    return f"{hint}(known: {', '.join(sorted(known))})"


def _option(kind: type[Any], text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if field.name not in ("place", "inner")
    }
    if name not in defaults:
        raise ValueError(f"{kind.__name__} has no option {name!r}{nearest(name, defaults)}")
    hint = get_type_hints(kind)[name]
    if get_origin(hint) is tuple:
        return name, tuple(value.split("+"))
    return name, _value(name, value, defaults[name], takes_words=hint is str or str in get_args(hint))


def _written(value: object) -> str:
    """The value of an option as a spec has it."""
    return "+".join(value) if isinstance(value, tuple) else str(value)


def _value(name: str, text: str, default: object, takes_words: bool) -> object:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    if not takes_words:
        raise ValueError(f"option {name} takes a value like {default}, not {text!r}")
    return text
