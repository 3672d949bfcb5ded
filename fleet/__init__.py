"""Devices by the many: new bundles tried beside the old ones, what was learned carried over and offered."""
