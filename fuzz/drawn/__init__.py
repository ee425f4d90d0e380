"""Random arguments of calls, each with its exact values for the oracle."""
