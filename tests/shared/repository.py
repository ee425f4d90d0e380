"""The root folder of this repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
