"""Training of the embedded model: `python -m studies.nano_bloom`."""
