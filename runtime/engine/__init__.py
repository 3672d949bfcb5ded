"""The graphs and modules on a device: everything that streams share, and nothing that learns."""
