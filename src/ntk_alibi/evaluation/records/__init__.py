"""Records: generated texts with questions about them, and the prose between their sentences."""
