"""vLLM: a plugin that stretches the slopes of its BLOOM and Falcon.

Only the module `models` imports vLLM at its top; vLLM imports it where it makes a model.
"""
