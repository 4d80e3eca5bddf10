"""Reads: from which replicas, over which path, in how many parts, through which caches."""
