"""Appends, and what of them is on disks."""
