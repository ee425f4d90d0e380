"""transformers' own tests of the model families of a patch, run on patched models.

`make peer-tests`, or `PYTHONPATH=tests/by_hand python -m peers --help`. The tests come from a
checkout of transformers; nothing of them is part of this repository.
"""
