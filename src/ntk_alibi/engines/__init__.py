"""Serving engines: what each needs to run stretched ALiBi models, one folder each."""
