"""Comparisons of methods by length, and a search for the best method."""
