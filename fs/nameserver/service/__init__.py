"""Requests: how they come, who may make them, what answers them."""
