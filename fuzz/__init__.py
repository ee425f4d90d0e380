"""Random calls of the package, compared with formulas that are written anew here.

`python -m fuzz --minutes 5` draws cases of all kinds on every instruction set; each report names
the command that runs its case again. `kinds` draws with `drawn` and compares with `oracle` within
`bounds`. Nothing here uses `ntk_alibi.reference`, and `oracle` uses nothing of the package at all.
"""
