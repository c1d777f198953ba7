"""Communication-efficient training for PyTorch: attach a technique to a DistributedDataParallel model.

model = DistributedDataParallel(net)
laconic.attach(model, laconic.Dense(dtype="bf16"))
"""

from laconic.attach import attach
from laconic.attachment import Attachment
from laconic.crossover import Crossover
from laconic.dad import DAD, RankDAD
from laconic.dense import Dense
from laconic.edad import EDAD
from laconic.explain import explain
from laconic.gennorm import GenNorm
from laconic.hook import Hook
from laconic.meter import Stats
from laconic.places import Peers
from laconic.sign_vote import Ramp, SignVote
from laconic.telemetry import JsonLines, TensorBoard, header
from laconic.telemetry import installed_version as _installed_version
from laconic.thc import THC

__version__ = _installed_version()

__all__ = [
    "DAD",
    "EDAD",
    "THC",
    "Attachment",
    "Crossover",
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
