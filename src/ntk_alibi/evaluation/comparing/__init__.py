"""Comparisons of methods by length and by task, and the search for the best method."""
