"""Records: generated texts with questions about them, and the prose that fills them."""
