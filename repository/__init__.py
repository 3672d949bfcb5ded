"""Where modules and bundles are published, and how a device reads it."""
