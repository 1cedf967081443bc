"""The native library: how it is loaded, and when its kernels run."""
