"""The commands of `speedwell`, a module for each group of them.

Modules import only click and what is cheap at their top; gRPC, rich and the rest are imported by the
command that needs them, so that every other command starts fast.
"""
