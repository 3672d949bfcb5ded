"""Store to bundle: graphs, weights, and the check against torch. Needs the `export` extra."""
