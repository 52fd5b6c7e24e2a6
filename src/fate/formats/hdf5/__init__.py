"""Events in HDF5 files: Prophesee, RVT, DSEC, M3ED and plain columns."""
