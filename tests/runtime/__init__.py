"""Tests of what runs and leaves the house."""
