"""Rotary embeddings and log-n scaling, applied to queries and keys before their product."""
