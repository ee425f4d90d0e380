"""Small random models and their input, for all tests of patched models."""

from family_models import ids, models, shallow

__all__ = ["ids", "models", "shallow"]
