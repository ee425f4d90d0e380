"""Random arguments of calls, each with its exact numbers for the oracle."""
