"""vLLM: a plugin that stretches the slopes of its BLOOM and Falcon, and brings MPT back.

`models` and `mpt` alone import vLLM when they are imported; vLLM does that where it makes a model.
"""
