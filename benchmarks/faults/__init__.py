"""What workers make of what goes wrong: python -m benchmarks.faults [--trials 20 --out docs/faults.md].

Four workers at the ends of real links (laconic/lab/links.py) train with each technique, and with plain DDP; in the
midst of it something happens to one of them. `script.py` is what they run, `stage.py` starts them (and torchrun, in
`launched.py`), `kinds.py` has what may happen, `trial.py` how one trial goes and what became of it, `page.py` the
table.
"""
