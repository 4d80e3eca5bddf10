"""Which dataservers there are, and which of them hold a content: placed, made again, moved."""
