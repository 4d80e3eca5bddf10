"""Ryu applications: they turn events and REST calls into policy calls, and policy results into OpenFlow messages."""

import eventlet.wsgi

# Ryu 4.34 imports this name from eventlet, which dropped it; only Ryu's web sockets ever use its value.
if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = object()
