"""MetaFlow's evaluation on an emulated fabric: every way to find a metadata server as real services."""
