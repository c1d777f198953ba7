"""Who damages messages for which decoder; the C++ ones are also targets of `make fuzz`, under sanitizers.

    coding        kernels: coding.unseal, gennorm_average
    sign_vote     kernels: sign_combine, sign_decode
    thc           kernels: thc_combine, thc_decode
    coded_runs    messages/coded_runs.py, as messages/thc.py and messages/sign_vote.py read it; unpack_symbols
    gennorm       messages/gennorm.py
    crossover     messages/crossover.py
    dad           techniques/dad_scheme.py, of DAD, EDAD and RankDAD
    sizes         messages/seals.py: sizes; whole messages are damaged in seals.py

What `Dense` sends, and norms that workers agree on, are so many numbers, of which any will do.
"""

from tests.fuzz import coded_runs, coding, crossover, dad, gennorm, sign_vote, sizes, thc

MODULES = coding, sign_vote, thc, coded_runs, gennorm, crossover, dad, sizes
DECODERS = {module.__name__.rpartition(".")[2]: module.fuzz for module in MODULES}
"""How many of so many damaged messages were understood, and how many were refused."""
