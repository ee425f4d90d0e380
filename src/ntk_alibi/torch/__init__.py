"""The torch layer: modules, operators and functions that import torch."""
