"""What a bundle costs on this device."""
