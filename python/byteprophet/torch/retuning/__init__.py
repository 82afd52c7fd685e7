"""Changes settings, such as the partition size or the buckets, between two steps."""
