"""The catalogue of The Update Framework: a device, and the repository that it follows turned hostile."""
