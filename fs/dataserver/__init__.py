"""The dataserver: stores files' chunks, serves reads and appends on the data channel."""
