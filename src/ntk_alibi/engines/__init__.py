"""Other engines: what each needs to run stretched ALiBi models, and `export` to their files."""
