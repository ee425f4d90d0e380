"""The forms of attention of a patched model: fused, eager, and traceable by torch."""
