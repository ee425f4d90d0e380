"""Comparisons of methods by length and by task, and a search for the best method."""
