"""Model families that can be patched, one table each."""
