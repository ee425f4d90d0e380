"""The inside of a call of torch tensors: the operator, all other derivatives, other devices."""
