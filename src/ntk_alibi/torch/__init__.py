"""The torch layer: modules, operators and functions that import torch."""

from ntk_alibi import _installed

with _installed.needed_by("ntk_alibi.torch"):
    from ntk_alibi.distributed.sharding import shard

__all__ = ["shard"]
