"""The torch layer: what needs torch itself and not only its tensors."""
