"""Formats of single datasets and programs: Event Stream and the binary files of N-MNIST."""
