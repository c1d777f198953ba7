"""Comparisons that come with Laconic: each is some command lines of `laconic compare`, for one report.

votes   S³GD-MV's own question: do sparse votes beat the signs of everything (signSGD with majority vote), and how far
        is the average ahead, if workers see all labels, and if each sees two of ten? Learning rates are the best of
        3e-4, 1e-3, 3e-3 (votes) and 0.03, 0.1 (average).
"""

from __future__ import annotations

_VOTES = "fashion --workers 15 --batch 16 --steps 200 --eval-every 25 --link none --techniques ddp@lr=0.1"
_BOTH = "sign_vote:density=1@lr={0},momentum=0 sign_vote:density=0.1@lr={0},momentum=0"

PRESETS = {
    "votes": (
        f"{_VOTES} {_BOTH.format(0.001)}",
        f"{_VOTES} {_BOTH.format(0.003)} --split labels:2",
    )
}
