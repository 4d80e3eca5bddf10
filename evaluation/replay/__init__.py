"""Traces of reads replayed on emulated hosts, against a real installation of a filesystem."""
