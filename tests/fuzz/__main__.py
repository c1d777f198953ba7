"""Damages so many messages for each decoder, or for those that are named.

    python -m tests.fuzz 1000000
    python -m tests.fuzz 1000000 coding thc

Every run damages others.
"""

import sys
import time

from tests.fuzz.decoders import DECODERS

if __name__ == "__main__":
    count, *names = sys.argv[1:]
    for name in names or DECODERS:
        begun = time.perf_counter()
        understood, refused = DECODERS[name](int(count), seed=time.time_ns())
        took = time.perf_counter() - begun
        print(f"{name}: {understood} understood, {refused} refused, none harmful, {took:.0f} s", flush=True)
