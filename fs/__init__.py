import os

# While no call waits, gRPC looks only each 5 s whether a connection came about: longer than an attempt may take here,
# so that all attempts failed for as long as nobody called.
os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100")
# Its own lines on standard error are for developers of gRPC: what a user needs is told by whoever called.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
