"""Bundles and modules as plain files that The Update Framework vouches for, and the device that reads them."""
