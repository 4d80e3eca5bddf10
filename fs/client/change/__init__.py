"""Changes anywhere in a file: open files, what is staged, new versions."""
