"""Pillar Encoding (section 3.1 of the paper): the events of a window as a dense pseudo-image, without time bins.

    encoder = PillarEncoder((240, 304), pillar=2, channels=64, moments=3)
    image = encoder(EventBatch.from_windows([(window, events)]))     # [1, 64, 120, 152]

Each event has D features (Eq. 1), which pass through one linear layer with BatchNorm and ReLU (Eq. 2). The frame is
divided into pillars of ``pillar`` × ``pillar`` pixels. In each pillar, the outputs of the layer are samples of a signal
in time. Its first K Legendre moments (Eq. 6) are estimated by the trapezoidal rule (Eq. 5) and combined by learned
weights (Eq. 7).

The paper's symbols: τ ``tau``, K ``moments``, N ``max_events``, P ``max_pillars``, C ``channels``, α ``alpha``,
β ``beta``. ``kernels/reference.py`` is Algorithm 1 line by line. ``kernels/cpu_kernels.py`` is the version for the CPU,
``kernels/triton_kernels.py`` for a GPU with Triton, and ``kernels/torch_kernels.py`` for other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch, check_batch
from fate.encoding.spec import PillarSpec, PillarStats, Pooling, Weighting, Weights, whole_number
from fate.errors import FateError
from fate.events.events import Sensor

if TYPE_CHECKING:
    from fate.encoding.kernels.cpu_inference import ImageMemory


class PillarEncoder(nn.Module):
    """Events to a pseudo-image [B, C, H / pillar, W / pillar] (rounded up), channels last in memory."""

    def __init__(
        self,
        sensor: Sequence[int],
        pillar: int = 2,
        channels: int = 64,
        moments: int = 3,
        max_events: int | None = 32,
        max_pillars: int | None = 16_000,
        center_offsets: bool = False,
        weighting: Weighting = "trapezoid",
        pooling: Pooling = "legendre",
        seed: int = 0,
    ) -> None:
        """Args:
        sensor: (height, width) in pixels.
        pillar: side of a pillar in pixels; also the stride of the image.
        channels: C.
        moments: K, the number of Legendre polynomials (degrees 0 to K - 1).
        max_events: N, the most events of a pillar; of more, N are sampled uniformly. None for no limit.
        max_pillars: P, the most pillars of a window; of more, P are sampled uniformly. None for no limit.
        center_offsets: add offsets from the pillar's centre to the features (D = 9 instead of 7).
        weighting: "trapezoid" (Eq. 5) or "uniform", the plain mean of the ablation.
        pooling: "legendre" or "max", the max pooling of the ablation, which has no alpha and beta.
        seed: of the sampling in evaluation; in training every call draws a seed from torch's generator.
        """
        super().__init__()
        self.spec = PillarSpec(
            Sensor.of(sensor), pillar, moments, max_events, max_pillars, center_offsets, weighting, pooling
        )
        self.channels, self.stride = whole_number("channels", channels), pillar
        self.seed = whole_number("seed", seed, least=0)
        self.linear = nn.Linear(self.spec.features, channels)
        self.norm = nn.BatchNorm1d(channels)
        self.alpha: nn.Parameter | None = None
        self.beta: nn.Parameter | None = None
        if pooling == "legendre":
            self.alpha = nn.Parameter(torch.empty(channels, moments))
            self.beta = nn.Parameter(torch.zeros(channels))
            nn.init.normal_(self.alpha, std=0.02)
            with torch.no_grad():
                self.alpha[:, 0] += 1.0  # initially the mean over time plus a little of the other moments
        self._stats: PillarStats | Callable[[], PillarStats] | None = None
        self._is_folded = False

    @property
    def sensor(self) -> Sensor:
        """(height, width) in pixels."""
        return self.spec.sensor

    @property
    def last_stats(self) -> PillarStats | None:
        """Counts of events and pillars of the last call; None before the first call. On a GPU this waits for it."""
        return self._stats() if callable(self._stats) else self._stats

    def forward(self, batch: EventBatch, memory: ImageMemory | None = None) -> Tensor:
        """Encode a batch on the encoder's device as [B, C, H', W'], zero in cells without events.

        With a ``memory``, inference on a CPU is faster; the image is then valid until the next call with this memory,
        and has its spare channels, too.
        """
        image: Tensor
        weight = self.linear.weight
        check_batch(batch, self.sensor)
        if batch.device != weight.device:
            raise FateError(f"the events are on {batch.device}, the encoder on {weight.device}; move one with .to()")
        is_inference = not (self.training or torch.is_grad_enabled())
        kernel = kernel_for(weight.device, weight.dtype, self.spec, self.channels if is_inference else None)
        capped = self.spec.max_events is not None or self.spec.max_pillars is not None
        seed = int(torch.randint(2**62, ())) if self.training and capped else self.seed
        where = weight.device.type
        # moments need float32 (or float64, if the parameters are)
        with torch.autocast(where, enabled=False) if torch.is_autocast_enabled(where) else nullcontext():
            if hasattr(kernel, "encode"):
                image, self._stats = kernel.encode(
                    batch, self.spec, seed, self.linear, self.norm, self.alpha, self.beta, memory
                )
                return image
            prepared = kernel.prepare(batch, self.spec, seed)
            self._stats = prepared.stats
            weights = self._folded(kernel, prepared, is_inference)
            if hasattr(kernel, "backward") and torch.is_grad_enabled():
                image = _Encode.apply(kernel, prepared, *weights)  # type: ignore[no-untyped-call]
            else:
                image = kernel.forward(prepared, weights)
        return image if image.dtype == weight.dtype else image.to(weight.dtype)

    def _folded(self, kernel: ModuleType, prepared: Any, is_inference: bool) -> Weights:
        """Linear layer and BatchNorm as one affine map (Eq. 2), with the statistics of this batch in training.

        The layer is linear, so its output has the mean W m + b and the variance w C wᵀ, where m and C are the mean
        and covariance of the D features over all events. These depend on no parameter, so the gradient of BatchNorm's
        statistics needs only them, not the single events.
        """
        norm, own = self.norm, self.linear.weight.dtype
        simple = is_inference and own in (torch.float32, torch.float64)
        if simple and hasattr(kernel, "fold_running") and self.alpha is not None and self.beta is not None:
            kept = self.linear.weight, self.linear.bias
            scale, shift = kept if self._is_folded else kernel.fold_running(self.linear, norm)
            return Weights(scale, shift, self.alpha, self.beta)
        kind = torch.float64 if own == torch.float64 else torch.float32
        weight, bias = self.linear.weight.to(kind), self.linear.bias.to(kind)
        if self.training:
            count, total, products = kernel.moments(prepared)
            mean, variance = self._batch_statistics(count, total, products, weight, bias)
        else:
            mean, variance = norm.running_mean.to(kind), norm.running_var.to(kind)  # type: ignore[union-attr]
        factor = torch.rsqrt(variance + norm.eps) * norm.weight.to(kind)
        shift = (bias - mean) * factor + norm.bias.to(kind)
        if self.alpha is None or self.beta is None:
            alpha, beta = weight.new_zeros(self.channels, self.spec.moments), weight.new_zeros(self.channels)
        else:
            alpha, beta = self.alpha.to(kind), self.beta.to(kind)
        return Weights(weight * factor[:, None], shift, alpha, beta)

    def _batch_statistics(
        self, count: int | Tensor, total: Tensor, products: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance [C] of the layer's output over the batch; updates the running statistics.

        ``total`` [D] and ``products`` [D, D] are the sums of the features of ``count`` events and of their products.
        """
        events = torch.as_tensor(count, dtype=total.dtype, device=total.device)  # float64 if the device supports it
        synchronized = isinstance(self.norm, nn.SyncBatchNorm) or getattr(self.norm, "spans_processes", False)
        if synchronized and torch.distributed.is_initialized():
            together = torch.cat([events[None], total, products.flatten()])
            torch.distributed.all_reduce(together, group=getattr(self.norm, "process_group", None))
            events, total, products = together[0], together[1 : 1 + len(total)], together[1 + len(total) :]
            products = products.view(len(total), -1)
        seen = events.clamp(min=1)
        average = total / seen
        covariance = products / seen - torch.outer(average, average)
        wide = weight.to(total.dtype)
        mean = wide @ average + bias.to(total.dtype)
        variance = ((wide @ covariance) * wide).sum(1).clamp(min=0)
        with torch.no_grad():  # as BatchNorm does, but a batch without events changes nothing
            norm, has_events = self.norm, (events > 0).to(mean.dtype)
            calls = cast(Tensor, norm.num_batches_tracked)
            calls += events > 0
            share = has_events / calls.clamp(min=1) if norm.momentum is None else has_events * norm.momentum
            unbiased = variance * events / (events - 1).clamp(min=1)
            for running, now in ((norm.running_mean, mean), (norm.running_var, unbiased)):
                running.copy_(running.to(now.dtype) * (1 - share) + now * share)  # type: ignore[union-attr]
        return mean.to(weight.dtype), variance.to(weight.dtype)

    @torch.no_grad()
    def fold_norm_(self) -> None:
        """Fold BatchNorm with its running statistics into the linear layer, so that no call does it again.

        BatchNorm becomes the identity. The encoder makes the same images, but cannot be trained any more.
        """
        linear, norm = self.linear, self.norm
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        factor = torch.rsqrt(variance.double() + norm.eps) * norm.weight
        linear.bias.copy_((linear.bias - mean) * factor + norm.bias)
        linear.weight.copy_(linear.weight * factor[:, None])
        for part, value in ((mean, 0.0), (variance, 1.0 - norm.eps), (norm.weight, 1.0), (norm.bias, 0.0)):
            part.fill_(value)
        self._is_folded = True

    def __getstate__(self) -> dict[str, Any]:
        """A copy, for example of a mean teacher or in another process, has no counts yet."""
        return {**self.__dict__, "_stats": None}

    def extra_repr(self) -> str:
        return f"{self.sensor}, channels={self.channels}, {self.spec}"


def kernel_for(device: torch.device, dtype: torch.dtype, spec: PillarSpec, channels: int | None = None) -> ModuleType:
    """The version of Pillar Encoding for a device and a type of parameters.

    The Triton version supports neither float64 nor max pooling. In inference ``channels`` is given; on a CPU the
    version that encodes in one call is then used if it supports the settings.
    """
    # numba is imported only when it is needed
    from fate.encoding.kernels import cpu_inference, cpu_kernels, torch_kernels  # noqa: PLC0415

    if device.type == "cpu":
        fused = channels is not None and cpu_inference.can_encode(spec, channels, dtype)
        return cpu_inference if fused else cpu_kernels
    supported = dtype != torch.float64 and spec.pooling != "max"
    if device.type == "cuda" and find_spec("triton") is not None and supported:
        from fate.encoding.kernels import triton_kernels  # noqa: PLC0415  (needs triton)

        return triton_kernels
    return torch_kernels


class _Encode(torch.autograd.Function):
    """A compiled kernel in autograd; only the weights have gradients."""

    @staticmethod
    def forward(ctx: Any, kernel: ModuleType, prepared: Any, *weights: Tensor) -> Tensor:
        ctx.kernel, ctx.prepared = kernel, prepared
        ctx.save_for_backward(*weights)
        image: Tensor = kernel.forward(prepared, Weights(*weights))
        return image

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.kernel.backward(ctx.prepared, Weights(*ctx.saved_tensors), gradient))
