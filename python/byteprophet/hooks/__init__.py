"""Functions that patched BytePS calls (native/byteps/patches)."""
