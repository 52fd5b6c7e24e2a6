"""RT-DETR (Zhao et al. 2024) as ``transformers`` stores it, in the names and shapes of EvRT-DETR's parts.

Weights trained on COCO are a start for detectors of events: what is not about images of three channels, or about
COCO's classes, fits. Two generations of the layout are known. Files on the hub were written before version 5, which
renamed parts of the attention layers; older versions also gave the decoder's heads a second name at the top:

    up to 4    model.encoder.encoder.0. …   self_attn.out_proj.   fc1.       class_embed.  bbox_embed.
    5          model.encoder.aifi.0. …      self_attn.o_proj.     mlp.fc1.   model.decoder.class_embed. …

The rules lie beside the parts (``TRANSFORMERS_NAMES``). Queries, keys and values, three matrices there, are one here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fate.errors import FateError
from fate.models.backbones import presnet
from fate.models.heads import rtdetr
from fate.models.necks import hybrid_encoder
from fate.models.renaming import rename

#: How the name of an entry shows the layout; without the prefix where a model was saved without its heads.
MARK = r"(model\.)?backbone\.model\.embedder\."
#: Detectors that take the weights, by the depth of the PResNet; the first is the one that is built unless asked.
DETECTORS = {50: ("evrt-detr-b", "fate-e"), 18: ("evrt-detr-s",)}
#: Our entries that begin anew: encoder and memory, which RT-DETR does not have, the first convolution, which sees an
#: encoder's channels instead of colours, and what there is one of for each class.
FRESH = (
    r"^(?:encoder|memory)\.",
    r"^backbone\.stem\.0\.conv\.",
    r"^head\.(?:cell_scores|scores|denoising_classes)\.",
)


def our_name(public: str) -> str:
    """One name. Parts of what is one matrix here end in #0, #1, #2."""
    inside = re.sub(r"^(class_embed|bbox_embed)\.", r"decoder.\1.", public.removeprefix("model."))
    if inside.startswith("backbone.model."):
        return "backbone." + rename(inside.removeprefix("backbone.model."), presnet.TRANSFORMERS_NAMES)
    if inside.startswith(("encoder.", "encoder_input_proj.")):
        return "neck." + rename(inside, hybrid_encoder.TRANSFORMERS_NAMES)
    return "head." + rename(inside, rtdetr.TRANSFORMERS_NAMES)


def our_entries(source: str | Path, entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All entries of a file by our names, with the parts of a matrix joined along the first axis."""
    parts: dict[str, dict[str, Tensor]] = {}
    for public, value in entries.items():
        name, _, part = our_name(public).partition("#")
        parts.setdefault(name, {})[part] = value
    return {name: _joined(f"{source}: {name}", found) for name, found in parts.items()}


def depth_of(ours: Mapping[str, Tensor]) -> int:
    """Of the PResNet, by its blocks. One that is not whole passes for 18 or 50: its names are compared afterwards."""
    bottleneck = "backbone.stages.0.0.branch.2.conv.weight" in ours
    found = {match.groups() for name in ours if (match := re.match(r"backbone\.stages\.(\d)\.(\d+)\.", name))}
    blocks = tuple(sum(stage == str(number) for stage, _ in found) for number in range(4))
    depths = (depth for depth, known in presnet.BLOCKS.items() if known == blocks and (depth >= 50) == bottleneck)
    return next(depths, 50 if bottleneck else 18)


def is_fresh(name: str) -> bool:
    """Whether an entry of ours begins anew."""
    return any(re.match(pattern, name) for pattern in FRESH)


def _joined(place: str, parts: Mapping[str, Tensor]) -> Tensor:
    if len(parts) == 1:
        return next(iter(parts.values()))
    try:
        return torch.cat([parts[part] for part in sorted(parts)])
    except (RuntimeError, TypeError):
        shapes = ", ".join(str(tuple(value.shape)) for value in parts.values())
        raise FateError(
            f"{place}: queries, keys and values of shapes {shapes} were found; expected equal ones"
        ) from None
