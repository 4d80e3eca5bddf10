"""Sessions of mounts, and the locks that they hold."""
