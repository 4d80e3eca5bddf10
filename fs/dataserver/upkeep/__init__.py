"""What a dataserver does beside requests: heartbeats, scrubbing, its copy of the namespace."""
