"""A decaying sum of the images before a window, for windows shorter than 50 ms.

A window of 5 ms has about a tenth of the events of one of 50 ms. A detector that was trained on windows of 50 ms sees
an incomplete object there, and a recurrent layer behind the first convolutions cannot repair the image. This layer
completes it. For window t with image x_t, length w and hop d, and a time constant τ_c for each channel:

    history    h_t = e^(-d / τ_c) · (h_{t-1} + min(d / w, 1) · x_{t-1})
    count      n_t = e^(-d / τ_n) · (n_{t-1} + min(d / w, 1) · o_{t-1}),    o = 1 in cells with events, else 0
    result     y_t = (x_t + s · g_c · h_t) / max(1, o_t + s · n_t),         s = max(0, 1 - w / 50 ms)

The values of Pillar Encoding are means over the events of a cell. To keep about their size, a sum over windows is
divided by the number of windows in which the cell had events. A cell whose last event is long ago fades. Overlapping
windows see every event w / d times, so each counts for d / w. The history counts for less as windows become longer. For
50 ms, s is 0 and y = x: there, a detector with this layer equals the one without, and can start from its weights.

All of it depends on elapsed time and not on the number of steps. Inference on a CPU uses ``image_history_cpu.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fate.models.layers.length_affine import split_length
from fate.rates import CANONICAL_US

#: Shortest and longest time constant at the beginning of training, ms; those of the channels lie between.
SHORTEST_MS, LONGEST_MS = 10.0, 40.0

#: Sum [B, C, H, W] and count [B, 1, H, W] after a window, both float32 or wider.
History = tuple[Tensor, Tensor]


class ImageHistory(nn.Module):
    """Images of windows, completed by those before."""

    follows_time = True

    def __init__(self, channels: int, keep_length: bool = False) -> None:
        """Args:
        channels: C, channels of the encoder's image without the length of the window.
        keep_length: append the length to the result, for a backbone that depends on it.
        """
        super().__init__()
        self.keep_length = keep_length
        self.compiled = True  #: whether inference on a CPU uses the kernel; else the operations below
        span = torch.linspace(math.log(SHORTEST_MS), math.log(LONGEST_MS), channels)
        canonical = math.log(CANONICAL_US / 1e3)
        self.log_rate = nn.Parameter(canonical - span)  #: ln(50 ms / τ_c)
        self.count_log_rate = nn.Parameter(canonical - span.mean())  #: ln(50 ms / τ_n)
        self.gain = nn.Parameter(torch.ones(channels))  #: g_c

    def forward(
        self,
        images: Tensor,
        state: History | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
        reuse_state: bool = False,
    ) -> tuple[Tensor, History]:
        """Completed images of a clip of T = ``steps`` windows of B streams, and the state after the clip.

        Args:
            images: [T · B, C + 1, H, W], time-major; the last channel is that of ``encoding.window_length``.
            state: before the clip; None for zeros.
            steps: T.
            step_scale: hop over 50 ms, one number or [T · B].
            reuse_state: the caller needs the given state no more, so its tensors may become those of the new one.

        Returns:
            Images [T · B, C, H, W], or [T · B, C + 1, H, W] with ``keep_length``; and the state. For windows of 50 ms
            and longer, the images may be the given ones, not a copy.
        """
        if self.compiled and _has_kernel(images):
            from fate.models.layers import image_history_cpu  # noqa: PLC0415  (numba is imported only when needed)

            rates = (self.log_rate, self.count_log_rate, self.gain)
            return image_history_cpu.complete(images, state, steps, step_scale, rates, self.keep_length, reuse_state)
        values, log_length = split_length(images)
        precise = torch.promote_types(values.dtype, torch.float32)
        column = (-1, 1, 1, 1)
        length = log_length.to(precise).exp().view(column)  # w / 50 ms
        if isinstance(step_scale, Tensor):
            hop = step_scale.to(precise).expand(len(images)).view(column)
        else:
            hop = torch.full_like(length, step_scale)
        keep = torch.exp(-hop * self.log_rate.to(precise).exp().view(1, -1, 1, 1))  # [T · B, C, 1, 1]
        count_keep = torch.exp(-hop * self.count_log_rate.to(precise).exp())
        share = (hop / length).clamp(max=1)
        strength = (1 - length).clamp(min=0)
        gain = strength * self.gain.to(precise).view(1, -1, 1, 1)
        if state is None:
            total = values.new_zeros(values.shape[0] // steps, *values.shape[1:], dtype=precise)
            total, count = total.contiguous(memory_format=_layout(values)), torch.zeros_like(total[:, :1])
        else:
            total, count = state
        results = []
        parts = (values, keep, count_keep, share, strength, gain)
        for x, decay, count_decay, part, strong, weight in zip(*(each.chunk(steps) for each in parts), strict=True):
            filled = (x != 0).any(dim=1, keepdim=True).to(precise)
            total, count = total * decay, count * count_decay
            windows = torch.addcmul(filled, strong, count).clamp(min=1)
            results.append((torch.addcmul(x, weight, total) / windows).to(x.dtype))
            total, count = torch.addcmul(total, part, x), torch.addcmul(count, part, filled)
        completed = results[0] if steps == 1 else torch.cat(results)
        if self.keep_length:
            completed = torch.cat((completed, images[:, -1:]), dim=1)
        return completed, (total, count)


def _has_kernel(images: Tensor) -> bool:
    """Whether there is a kernel: in inference on a CPU in float32, and not for a graph of operations."""
    is_plain = not torch.is_grad_enabled() and images.device.type == "cpu" and images.dtype == torch.float32
    return is_plain and not (torch.compiler.is_compiling() or torch.compiler.is_exporting())


def _layout(images: Tensor) -> torch.memory_format:
    return torch.contiguous_format if images.is_contiguous() else torch.channels_last
