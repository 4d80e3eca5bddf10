"""Changes anywhere in a file, as new versions."""
