"""What lies on a dataserver's disks, and how."""
