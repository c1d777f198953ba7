"""Mathematics without torch.distributed: random streams, codes, grids, low rank, who mixes with whom.

It imports no other room. Whatever two machines must compute alike is here.
"""
