"""Settings of all unit tests."""

from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("untimed", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=1000)     # of scripts/fuzz
settings.load_profile("untimed")
