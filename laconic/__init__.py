"""Communication-efficient training for PyTorch: attach a technique to a DistributedDataParallel model.

model = DistributedDataParallel(net)
laconic.attach(model, laconic.Dense(dtype="bf16"))
"""

from importlib.metadata import version

from laconic.attach import attach
from laconic.attachment import Attachment
from laconic.dense import Dense
from laconic.hook import Hook
from laconic.meter import Stats
from laconic.places import Peers

__version__ = version("laconic")

__all__ = ["Attachment", "Dense", "Hook", "Peers", "Stats", "attach"]
