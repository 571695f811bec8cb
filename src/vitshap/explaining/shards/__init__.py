"""Shards of images to one Parquet file of values each: ``vitshap explain SHARDS``, for any number of machines.

``read`` finds shards and reads their images, ``write`` explains one shard into its file, ``on_ray`` spreads shards over a
Ray cluster, and ``command`` is what ``vitshap explain`` does with shards.
"""

from vitshap.explaining.shards.read import Shard, UnreadableShard, find_shards, read_shard
from vitshap.explaining.shards.write import Job, ShardResult, explain_shard

__all__ = ["Job", "Shard", "ShardResult", "UnreadableShard", "explain_shard", "find_shards", "read_shard"]
