"""vLLM: a plugin that stretches the slopes of its BLOOM and Falcon.

`models` alone imports vLLM when it is imported; vLLM does that where it makes a model.
"""
