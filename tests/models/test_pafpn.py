"""PAFPN: wiring against a plain computation by the public names, counts, names, empty batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fate.models.checkpoints.importing import RVT
from fate.models.necks.pafpn import PAFPN
from tests.models.conftest import rename_entries

CHANNELS = (6, 10, 16)


def well_scaled(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Weights under which signals neither die nor explode, and BatchNorms that do something."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for key, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        if key.endswith("num_batches_tracked"):
            weights[key] = torch.tensor(0)
        elif len(shape) > 1:
            weights[key] = drawn / (drawn[0].numel() ** 0.5)
        elif key.endswith("running_var"):
            weights[key] = 0.5 + torch.rand(shape, generator=generator)
        else:
            weights[key] = 0.2 * drawn + (1.0 if key.endswith("weight") else 0.0)
    return weights


def conv_shapes(name: str, inside: int, out: int, kernel: int = 1) -> dict[str, tuple[int, ...]]:
    """The public entries of a convolution with BatchNorm."""
    norm = {f"{name}.bn.{part}": (out,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {f"{name}.conv.weight": (out, inside, kernel, kernel), **norm, f"{name}.bn.num_batches_tracked": ()}


def conv(weights: dict[str, Tensor], name: str, image: Tensor, stride: int = 1) -> Tensor:
    """Convolution, BatchNorm of running statistics and SiLU, written out."""
    kernel = weights[f"{name}.conv.weight"]
    image = functional.conv2d(image, kernel, stride=stride, padding=kernel.shape[-1] // 2)
    scale, shift, mean, variance = (
        weights[f"{name}.bn.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
    )
    image = (image - mean) / (variance + 1e-5).sqrt() * scale + shift
    return image * torch.sigmoid(image)


def public_shapes(channels: tuple[int, int, int], bottlenecks: int) -> dict[str, tuple[int, ...]]:
    fine, middle, coarse = channels
    shapes = conv_shapes("lateral_conv0", coarse, middle) | conv_shapes("reduce_conv1", middle, fine)
    shapes |= conv_shapes("bu_conv2", fine, fine, 3) | conv_shapes("bu_conv1", middle, middle, 3)
    for name, inside, out in (
        ("C3_p4", 2 * middle, middle),
        ("C3_p3", 2 * fine, fine),
        ("C3_n3", 2 * fine, middle),
        ("C3_n4", 2 * middle, coarse),
    ):
        half = out // 2
        shapes |= conv_shapes(f"{name}.conv1", inside, half) | conv_shapes(f"{name}.conv2", inside, half)
        shapes |= conv_shapes(f"{name}.conv3", 2 * half, out)
        for number in range(bottlenecks):
            shapes |= conv_shapes(f"{name}.m.{number}.conv1", half, half)
            shapes |= conv_shapes(f"{name}.m.{number}.conv2", half, half, 3)
    return shapes


def plain(weights: dict[str, Tensor], features: list[Tensor], bottlenecks: int) -> list[Tensor]:
    """The neck as its description reads, by the public names."""

    def csp(name: str, image: Tensor) -> Tensor:
        through = conv(weights, f"{name}.conv1", image)
        for number in range(bottlenecks):
            through = conv(weights, f"{name}.m.{number}.conv1", through)
            through = conv(weights, f"{name}.m.{number}.conv2", through)
        around = conv(weights, f"{name}.conv2", image)
        return conv(weights, f"{name}.conv3", torch.cat([through, around], 1))

    def twice(image: Tensor) -> Tensor:
        return image.repeat_interleave(2, -1).repeat_interleave(2, -2)

    x8, x16, x32 = features
    top = conv(weights, "lateral_conv0", x32)
    middle = conv(weights, "reduce_conv1", csp("C3_p4", torch.cat([twice(top), x16], 1)))
    out8 = csp("C3_p3", torch.cat([twice(middle), x8], 1))
    out16 = csp("C3_n3", torch.cat([conv(weights, "bu_conv2", out8, 2), middle], 1))
    out32 = csp("C3_n4", torch.cat([conv(weights, "bu_conv1", out16, 2), top], 1))
    return [out8, out16, out32]


def maps(windows: int = 2, channels: tuple[int, ...] = CHANNELS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(windows, number, 3 * 2**level, 5 * 2**level, generator=generator)
        for number, level in zip(channels, (2, 1, 0), strict=True)
    ]


@pytest.mark.parametrize("bottlenecks", [1, 2])
def test_wiring_is_that_of_the_plain_computation_by_public_names(bottlenecks: int) -> None:
    weights = well_scaled(public_shapes(CHANNELS, bottlenecks))
    neck = PAFPN(CHANNELS, bottlenecks).eval()
    neck.load_state_dict(rename_entries(weights, RVT["neck"]))
    for ours, expected in zip(neck(maps()), plain(weights, maps(), bottlenecks), strict=True):
        assert expected.std() > 0.1
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_every_public_entry_has_one_of_ours_and_counts_agree(golden_weights: Callable[..., dict[str, Tensor]]) -> None:
    neck = PAFPN((128, 256, 512))
    assert neck.channels == (128, 256, 512)
    assert sum(parameter.numel() for parameter in neck.parameters()) == 3_860_992
    for keys in ("rvt_b_gen1", "s5vit_b_gen1"):
        official = golden_weights(keys, "mdl.fpn.")
        ours = rename_entries(official, RVT["neck"])
        assert len(ours) == len(official)
        assert set(ours) == set(neck.state_dict())
        neck.load_state_dict(ours)


def test_every_map_reaches_every_output_and_every_parameter_gets_a_gradient() -> None:
    neck = PAFPN(CHANNELS, 1)
    features = [image.requires_grad_() for image in maps()]
    for output in neck(features):
        gradients = torch.autograd.grad((output**2).sum(), features, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
    sum((output**2).sum() for output in neck(features)).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in neck.parameters())


def test_no_window_at_all_gives_empty_maps_connected_to_every_parameter() -> None:
    neck = PAFPN(CHANNELS)
    statistics = {name: value.clone() for name, value in neck.named_buffers() if "running" in name}
    outputs = neck(maps(0))
    assert [tuple(output.shape) for output in outputs] == [tuple(image.shape) for image in maps(0)]
    sum(output.sum() for output in outputs).backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in neck.parameters())
    assert all(value.equal(dict(neck.named_buffers())[name]) for name, value in statistics.items())


def test_channels_last_stays_and_changes_nothing() -> None:
    neck = PAFPN(CHANNELS).eval()
    expected = neck(maps())
    outputs = neck.to(memory_format=torch.channels_last)(
        [image.to(memory_format=torch.channels_last) for image in maps()]
    )
    for output, other in zip(outputs, expected, strict=True):
        assert output.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(output, other, rtol=1e-4, atol=1e-5)


def test_channel_by_channel_every_map_reaches_every_output_with_far_fewer_parameters() -> None:
    neck = PAFPN(CHANNELS, depthwise=True, activation="hardswish")
    features = [image.requires_grad_() for image in maps()]
    for output, image in zip(neck(features), features, strict=True):
        assert output.shape == image.shape
        gradients = torch.autograd.grad((output**2).sum(), features, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
    count, whole = (sum(parameter.numel() for parameter in each.parameters()) for each in (neck, PAFPN(CHANNELS, 1)))
    assert count < whole / 2
