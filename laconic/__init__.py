"""Communication-efficient training for PyTorch: attach a technique to a DistributedDataParallel model.

model = DistributedDataParallel(net)
laconic.attach(model, laconic.Dense(dtype="bf16"))
"""

from laconic.core.meter import Stats
from laconic.numerics.damage import DamagedMessage
from laconic.places.peers import Peers
from laconic.sources.attach import attach
from laconic.sources.attachment import Attachment
from laconic.sources.ddp_hook import Hook
from laconic.sources.explain import explain
from laconic.techniques.crossover import Crossover
from laconic.techniques.dad import DAD, RankDAD
from laconic.techniques.dense import Dense
from laconic.techniques.edad import EDAD
from laconic.techniques.gennorm import GenNorm
from laconic.techniques.sign_vote import Ramp, SignVote
from laconic.techniques.thc import THC
from laconic.telemetry import JsonLines, TensorBoard, header
from laconic.telemetry import installed_version as _installed_version

__all__ = [
    "DAD",
    "EDAD",
    "THC",
    "Attachment",
    "Crossover",
    "DamagedMessage",
    "Dense",
    "GenNorm",
    "Hook",
    "JsonLines",
    "Peers",
    "Ramp",
    "RankDAD",
    "SignVote",
    "Stats",
    "TensorBoard",
    "attach",
    "explain",
    "header",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # to read it takes two milliseconds
        return _installed_version()
    raise AttributeError(f"laconic has no {name}")
