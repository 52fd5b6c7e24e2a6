"""What combines the library and its tools: detect, demo, checks of labels, studies."""
