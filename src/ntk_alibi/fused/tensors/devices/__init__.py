"""Attention on devices other than the CPU: kernels, each of which tells which calls it supports."""
