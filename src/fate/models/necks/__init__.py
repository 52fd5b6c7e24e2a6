"""Features of several scales, brought together."""
