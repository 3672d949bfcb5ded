"""Labelled folders to a module store. Needs the `train` extra."""
