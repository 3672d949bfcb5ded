"""Methods compared on the user's own bundle and folders: `pluto eval`. Torch is needed for CoTTA only."""
