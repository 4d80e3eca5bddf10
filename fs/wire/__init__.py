"""What goes between processes: frames, local sockets, TLS, pools of connections, and requests to a nameserver."""
