"""transformers' own tests of BLOOM, MPT and Falcon, run on patched models.

`make peer-tests`, or `PYTHONPATH=tests python -m peers --help`. The tests come from a checkout of
transformers; nothing of them is part of this repository.
"""
