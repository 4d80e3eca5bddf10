"""The nameserver: the namespace, which dataservers hold each file, and who of them is alive."""
