"""Rotary embeddings and log-n scaling: what is done to queries and keys before their product."""
