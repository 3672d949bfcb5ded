"""Attacks that end in every way there is: what the harness of `attacks/` is tested with."""
