"""The web page at `/` and its stream of events: what all systems tell over REST, once a second for all who look."""
