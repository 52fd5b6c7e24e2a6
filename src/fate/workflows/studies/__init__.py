"""The paper's tables and the ablations: what they compare, how their runs are made, what is printed."""
