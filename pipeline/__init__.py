"""Folders of images to a published repository: training, export, matrix, checks and publication as one run."""
