"""A study of length extrapolation: small decoders with different position schemes."""
