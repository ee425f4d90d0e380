"""Attention over a sequence whose parts lie on several ranks of torch.distributed."""
