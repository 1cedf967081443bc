"""The native library: its loader, its kernels, and when they are used."""
