"""How images meet backbones: padding, strides of stems, groups of attention."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fate.errors import FateError
from fate.models.detector import MOST_TOKENS, Frame, Stem, frame_of

sensors = st.tuples(st.integers(1, 1300), st.integers(1, 1300))
strides = st.sampled_from([1, 2, 4, 8, 16, 32])
first_strides = st.sampled_from([2, 4])
stems = st.sampled_from(get_args(Stem))


@pytest.mark.parametrize(
    ("sensor", "padded", "partition"),
    [((240, 304), (256, 320), (8, 10)), ((360, 640), (384, 640), (6, 10))],
    ids=["Gen1", "1Mpx at half its resolution"],
)
def test_the_public_sizes_are_those_of_rvt(
    sensor: tuple[int, int], padded: tuple[int, int], partition: tuple[int, int]
) -> None:
    frame = frame_of(sensor, encoder_stride=1, full_stride=4)
    assert (tuple(frame.padded), frame.partition) == (padded, partition)


@given(sensors, strides, first_strides, stems)
def test_padding_is_the_least_that_attention_allows(
    sensor: tuple[int, int], encoder_stride: int, full_stride: int, stem: Stem
) -> None:
    frame = frame_of(sensor, encoder_stride, full_stride, stem)
    step = frame.padded.height // frame.partition[0]
    assert step == frame.padded.width // frame.partition[1]
    assert step % 32 == 0
    assert all(side <= padded < side + step for side, padded in zip(sensor, frame.padded, strict=True))
    assert frame.partition[0] * frame.partition[1] <= MOST_TOKENS
    smaller = step - 32
    if smaller:
        assert -(-sensor[0] // smaller) * -(-sensor[1] // smaller) > MOST_TOKENS


@given(sensors, strides, first_strides, stems)
def test_the_first_convolution_ends_at_its_stride_for_every_encoder(
    sensor: tuple[int, int], encoder_stride: int, full_stride: int, stem: Stem
) -> None:
    frame = frame_of(sensor, encoder_stride, full_stride, stem)
    assert encoder_stride * frame.stem_stride == full_stride * frame.repeat
    assert frame.repeat == 1 or frame.stem_stride == 1 or stem == "upsample"
    if stem == "upsample":
        assert (frame.repeat, frame.stem_stride) == (encoder_stride, full_stride)


@given(st.tuples(st.integers(1, 70), st.integers(1, 70)), strides, stems)
def test_an_image_is_padded_at_the_right_and_below_and_repeated(
    sensor: tuple[int, int], encoder_stride: int, stem: Stem
) -> None:
    frame = frame_of(sensor, encoder_stride, 4, stem, empty_value=7.0)
    rows, columns = (-(-side // encoder_stride) for side in sensor)
    image = torch.randn(2, 3, rows, columns)
    padded = frame.padded_image(image)
    assert padded.shape == (2, 3, *(side // encoder_stride * frame.repeat for side in frame.padded))
    inside = padded[:, :, : rows * frame.repeat, : columns * frame.repeat]
    assert torch.equal(inside, image.repeat_interleave(frame.repeat, 2).repeat_interleave(frame.repeat, 3))
    assert int((padded == 7.0).sum()) == padded.numel() - inside.numel()


def test_an_image_that_fits_is_handed_on() -> None:
    image = torch.randn(1, 2, 64, 96)
    assert frame_of((64, 96), 1, 4).padded_image(image) is image


def test_a_frame_is_a_value() -> None:
    assert frame_of((240, 304), 2, 4) == frame_of([240, 304], 2, 4)
    assert isinstance(frame_of((240, 304), 2, 4), Frame)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(FateError, match="stem='nativ' was given; expected one of 'native', 'upsample'"):
        frame_of((240, 304), 1, 4, stem="nativ")  # type: ignore[arg-type]
    with pytest.raises(FateError, match="cells of 3 pixels"):
        frame_of((240, 304), 3, 4)
    with pytest.raises(FateError, match="expected"):
        frame_of((240,), 1, 4)
