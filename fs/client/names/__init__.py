"""Names and attributes, as the nameservers have them: requests, a cache, sessions, tokens."""
