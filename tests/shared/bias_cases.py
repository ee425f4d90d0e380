"""Biases that several tests share."""

from __future__ import annotations

import numpy as np

R1, R2 = np.array([0.3, 1.5, 0.01]), np.array([1.9, 0.4, 1.0])
