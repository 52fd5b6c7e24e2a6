"""Weights on disk: our safetensors files (``saved``) and the files of public projects (``importing``)."""

from fate.models.checkpoints.saved import (
    add_facts,
    check_entries,
    is_own,
    load_model,
    read_card,
    record_accuracy,
    save_model,
)

__all__ = ["add_facts", "check_entries", "is_own", "load_model", "read_card", "record_accuracy", "save_model"]
