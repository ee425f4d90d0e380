"""Key-value caches for patched models."""
