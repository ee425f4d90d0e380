"""Rotary embeddings and log-n scaling, which change queries and keys before their product."""
