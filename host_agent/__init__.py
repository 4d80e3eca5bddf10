"""The process on each host that lets large flows send in their turn, and queues them on the host's own uplink."""
