"""Attention on other devices than the CPU: kernels that say which problems they can do."""
