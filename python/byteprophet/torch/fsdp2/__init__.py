"""FSDP2 (``fully_shard``) for models of scripts, with transfers that overlap on CPUs."""
