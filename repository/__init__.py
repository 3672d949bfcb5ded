"""Bundles and modules published as plain files that The Update Framework vouches for, and the device that reads them."""
