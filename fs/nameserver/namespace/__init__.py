"""The tree of names, as records in a store: made, changed, counted, removed."""
