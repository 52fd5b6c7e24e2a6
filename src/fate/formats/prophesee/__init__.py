"""Prophesee's formats: DAT, RAW (EVT2, EVT2.1, EVT3) and the compressed chunks of its HDF5 files (ECF)."""
