"""FAT phase 1: a detector sweeps over dense times, its boxes become tracks, tracks become labels at every rate."""

from fate.callable_package import make_callable

make_callable(__name__, "fate.workflows.commands:densify")
