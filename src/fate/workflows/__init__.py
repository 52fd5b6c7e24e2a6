"""Functions that combine the library and its tools: detect, demo, checks of labels, studies."""
