"""Coflows on an emulated fabric: what arrives when is given, and how long each takes is measured."""
