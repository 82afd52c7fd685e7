"""What patched BytePS calls (native/byteps/patches)."""
