"""Small random models and their input, for all tests of patched models."""

from bloom_models import bloom_ids, blooms
from family_models import ids, models, shallow

__all__ = ["bloom_ids", "blooms", "ids", "models", "shallow"]
