"""Streams watched and recorded: sources, recordings, pictures, pages. Nothing that predicts waits for it."""
