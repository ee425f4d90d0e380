"""Does stretching an encoder do something: `python -m studies.encoder`."""
