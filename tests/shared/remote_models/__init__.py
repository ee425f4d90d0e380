"""Abridged models of remote code, a module each, with the published classes' names."""
