"""Records: texts with questions about them, and prose."""
