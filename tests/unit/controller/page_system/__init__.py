"""A system of a page: counts in the edge switches what hosts send to one UDP port, and offers a policy."""
