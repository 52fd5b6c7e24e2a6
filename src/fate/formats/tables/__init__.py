"""Events as tables: CSV and other text, NPY and NPZ."""
