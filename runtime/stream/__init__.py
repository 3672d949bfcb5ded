"""Frames one at a time: when to learn, from what, and who is told."""
