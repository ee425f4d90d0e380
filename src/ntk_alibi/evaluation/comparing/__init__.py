"""Comparisons of methods by length."""
