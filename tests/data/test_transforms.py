"""Properties of augmentation: what draws give, what becomes of labels, what is erased."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fate.boxes.labels import Labels, LabelSource
from fate.data import affine
from fate.data.transforms import Augmentation
from fate.errors import FateError
from fate.events.events import Events, Sensor
from tests.conftest import make_events
from tests.data.test_affine import EVERYTHING, SENSOR, SENSORS, drawn, made


def random_labels(seed: int, sensor: Sensor = SENSOR, count: int = 12) -> Labels:
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-5, [sensor.width + 5, sensor.height + 5], (2, count, 2))
    boxes = np.concatenate([corners.min(0), corners.max(0)], axis=1)
    return Labels(
        np.sort(rng.integers(0, 4, count)) * 50_000,
        *boxes.T,
        rng.integers(0, 3, count),
        np.arange(count),
        rng.random(count),
        rng.integers(0, 3, count),
        labelled_us=np.arange(6) * 50_000,
        sensor=sensor,
    )


# --- labels ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_labels_stay_in_the_frame_and_keep_all_else(seed: int, which: int) -> None:
    labels = random_labels(which)
    transform = EVERYTHING.draw(np.random.default_rng(seed), SENSOR, labels)
    after = transform.labels(labels)
    assert after.sensor == labels.sensor
    assert np.array_equal(after.labelled_us, labels.labelled_us)
    assert len(after) <= len(labels)
    assert np.all((after.x1 >= 0) & (after.y1 >= 0) & (after.x2 <= 64) & (after.y2 <= 48))
    if not transform.is_identity:
        assert np.all((after.x2 - after.x1 > 0.999) & (after.y2 - after.y1 > 0.999))
    rows = after.track_id  # numbered from 0
    for name in ("t_us", "class_id", "score", "source"):
        assert np.array_equal(getattr(after, name), getattr(labels, name)[rows])


def test_boxes_are_the_upright_hulls_of_their_corners() -> None:
    turned = made(affine.rotation(SENSOR, 90))  # about (32, 24): (x, y) goes to (56 - y, x - 8)
    boxes, keep = turned.boxes([[20, 10, 30, 40], [32, 24, 34, 26]])
    assert boxes == pytest.approx(np.array([[16, 12, 46, 22], [30, 24, 32, 26]]), abs=1e-5)
    assert keep.all()
    assert boxes.dtype == np.float32
    diamond = affine.hulls(affine.rotation(SENSOR, 45), np.array([[31.0, 23, 33, 25]]))
    assert diamond == pytest.approx(np.array([[32 - 2**0.5, 24 - 2**0.5, 32 + 2**0.5, 24 + 2**0.5]]))


def test_labels_go_when_too_little_of_their_box_is_left() -> None:
    boxes = [[0, 0, 10, 10], [0, 0, 20, 10], [4, 0, 14, 10], [50, 0, 60, 10]]
    left = made(affine.shift(-11, 0))  # 0, 9/20, 3/10 and all of them stay in view
    assert left.boxes(boxes)[1].tolist() == [False, True, True, True]
    slivers = [[0, 0, 12.5, 10], [0, 0, 11.9, 10], [0, 0, 13, 0.5]]  # 1.5/12.5, then 0.9 px and 0.5 px sides
    assert left.boxes(slivers)[1].tolist() == [True, False, False]
    labels = Labels([0, 0, 0, 7], *np.array(boxes, np.float32).T, [0, 1, 0, 0], sensor=SENSOR)
    assert left.labels(labels).boxes.tolist() == [[0, 0, 9, 10], [0, 0, 3, 10], [39, 0, 49, 10]]
    assert left.labels(labels).labelled_us.tolist() == [0, 7]


def test_only_the_visible_part_of_a_box_is_mapped() -> None:
    half = made(affine.scaling(SENSOR, 0.5))
    boxes, keep = half.boxes([[-100, 0, 20, 20], [-30, 0, -10, 10], [5, 5, 5, 5]])
    assert boxes[0].tolist() == [16, 12, 26, 22]
    assert keep.tolist() == [True, False, False]


def test_no_boxes_and_no_events_stay_none() -> None:
    turned = made(affine.rotation(SENSOR, 10))
    empty = Labels.empty([0, 50], sensor=SENSOR)
    assert turned.labels(empty) == empty
    assert turned.boxes(np.zeros((0, 4)))[0].shape == (0, 4)
    assert turned.events(Events.empty(SENSOR)) == Events.empty(SENSOR)


@given(st.integers(0, 10**6))
def test_the_inverse_undoes_the_map(seed: int) -> None:
    matrix = np.array(drawn(seed, SENSOR).matrix)
    assert np.allclose(affine.compose(matrix, affine.inverse(matrix)), [[1, 0, 0], [0, 1, 0]], atol=1e-9)


# --- images ----------------------------------------------------------------------------------------------------------


def histograms(windows: list[Events]) -> NDArray[np.uint8]:
    """[T, 2, H, W] events of each polarity by pixel."""
    images = np.zeros((len(windows), 2, *windows[0].sensor), np.uint8)
    for image, events in zip(images, windows, strict=True):
        np.add.at(image, (events.p, events.y, events.x), 1)
    return images


@given(st.integers(0, 10**6), st.integers(0, 50))
def test_images_are_changed_as_the_events_they_were_made_of(seed: int, first: int) -> None:
    augmentation = replace(EVERYTHING, erase=0.5)
    transform = augmentation.draw(np.random.default_rng(seed), SENSOR, random_labels(seed))
    windows = [make_events(400, SENSOR, seed=seed + t) for t in range(3)]
    before = histograms(windows)
    kept = before.copy()
    changed = [transform.erased(transform.events(each), first + t) for t, each in enumerate(windows)]
    assert np.array_equal(transform.images(before, first), histograms(changed))
    assert np.array_equal(before, kept)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(FateError, match="images of a 3×2 sensor were given"):
        made(affine.flip(SENSOR)).images(np.zeros((1, 20, 2, 3), np.uint8))


# --- draws -----------------------------------------------------------------------------------------------------------


def test_without_augmentation_the_same_objects_come_back() -> None:
    transform = Augmentation().draw(np.random.default_rng(0), SENSOR)
    events, labels = make_events(sensor=SENSOR), random_labels(0)
    assert transform.is_identity
    assert transform.events(events) is events
    assert transform.erased(events) is events
    assert transform.labels(labels) is labels


@pytest.mark.parametrize("preset", ["paper", "rvt_random", "rvt_stream"])
def test_the_state_of_the_generator_decides_everything(preset: str) -> None:
    augmentation, labels = getattr(Augmentation, preset)(), random_labels(3)
    first, again = ([augmentation.draw(rng, SENSOR, labels) for _ in range(20)] for rng in generators(2))
    assert first == again
    assert pickle.loads(pickle.dumps(first)) == first
    assert len(set(first)) > 10
    events = make_events(sensor=SENSOR)
    assert first[0].erased(first[0].events(events), 3) == again[0].erased(again[0].events(events), 3)


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(7) for _ in range(count)]


def test_a_draw_takes_the_same_random_numbers_whatever_it_decides() -> None:
    presets = [Augmentation(), Augmentation.paper(), Augmentation.rvt_random(), EVERYTHING]
    rngs = generators(len(presets))
    for preset, rng in zip(presets, rngs, strict=True):
        preset.draw(rng, SENSOR, random_labels(0))
    assert len({rng.random() for rng in rngs}) == 1


def matrices(count: int = 400, **settings: Any) -> NDArray[np.float64]:
    """[count, 2, 3] draws of a Gen1 frame."""
    rng = np.random.default_rng(1)
    augmentation = Augmentation(**settings)
    return np.array([augmentation.draw(rng, (240, 304)).matrix for _ in range(count)])


def test_each_step_keeps_to_its_range_and_fills_it() -> None:
    angles = np.degrees(np.arctan2(*matrices(rotate=1.0)[:, [1, 0], 0].T))
    assert np.abs(angles).max() <= 30
    assert np.ptp(angles) > 55
    shifts = matrices(translate=1.0)[:, :, 2]
    assert np.all(shifts == np.rint(shifts))
    assert np.all(np.abs(shifts) <= [152, 120])
    assert np.all(np.ptp(shifts, axis=0) > [280, 220])
    factors = matrices(scale=1.0)
    assert np.all((factors[:, 0, 0] >= 0.5) & (factors[:, 0, 0] <= 1.5) & (factors[:, 0, 0] == factors[:, 1, 1]))
    assert np.ptp(factors[:, 0, 0]) > 0.95
    leans = matrices(shear=1.0)[:, 0, 1]
    assert np.abs(leans).max() <= math.tan(math.radians(30))
    assert np.ptp(np.degrees(np.arctan(leans))) > 55
    assert np.all(matrices(flip=1.0) == affine.flip(Sensor(240, 304)))


def test_steps_about_the_centre_leave_it_in_place() -> None:
    for settings in ({"flip": 1.0}, {"rotate": 1.0}, {"scale": 1.0}, {"shear": 1.0}):
        assert np.allclose(matrices(20, **settings) @ [152, 120, 1], [152, 120])


def test_chances_are_kept() -> None:
    paper, labels = Augmentation.paper(), random_labels(0)
    rng = np.random.default_rng(0)
    drawn_maps = np.array([replace(paper, scale=0, shear=0, translate=0).draw(rng, SENSOR).matrix for _ in range(1000)])
    assert np.mean(np.linalg.det(drawn_maps[:, :, :2]) < 0) == pytest.approx(0.5, abs=0.05)
    assert np.mean(drawn_maps[:, 1, 0] != 0) == pytest.approx(0.6, abs=0.05)
    stream = [Augmentation.rvt_stream().draw(rng, SENSOR, labels).matrix[1][1] for _ in range(1000)]
    assert np.mean(np.array(stream) < 1) == pytest.approx(0.5, abs=0.05)
    assert max(stream) == 1
    clips = np.array([Augmentation.rvt_random().draw(rng, SENSOR, labels).matrix[1][1] for _ in range(1000)])
    assert np.mean(clips > 1) == pytest.approx(0.64, abs=0.05)
    assert np.mean(clips < 1) == pytest.approx(0.16, abs=0.03)


@given(st.integers(0, 10**6), st.integers(0, 100))
def test_zooming_in_keeps_a_box_of_the_last_labelled_time_in_view(seed: int, which: int) -> None:
    labels = random_labels(which)
    augmentation = Augmentation(flip=0.5, zoom=1.0, zoom_in_share=1.0)
    transform = augmentation.draw(np.random.default_rng(seed), SENSOR, labels)
    factor = transform.matrix[1][1]
    assert 1 <= factor <= 1.5
    last = labels.at(int(labels.t_us[-1])).boxes
    limits = np.array([64, 48, 64, 48])
    hulls = affine.hulls(np.array(transform.matrix), np.clip(last, 0, limits))
    shown, low, high = np.array([64, 48]), hulls[:, :2], hulls[:, 2:]
    held = (low >= -1e-4) & (high <= shown + 1e-4)  # the box lies in the frame,
    filled = (low <= 1e-4) & (high >= shown - 1e-4)  # or fills it
    assert (held | filled).all(axis=1).any()


def test_zooming_in_picks_every_box_and_never_leaves_the_frame() -> None:
    boxes = np.array([[0, 0, 4, 4], [60, 0, 64, 4], [0, 44, 4, 48], [60, 44, 64, 48]])
    labels = Labels([5] * 4, *boxes.T, [0] * 4, labelled_us=[5, 9], sensor=SENSOR)
    augmentation = Augmentation(zoom=1.0, zoom_in_share=1.0, zoom_in_range=(1.4, 1.5))
    rng = np.random.default_rng(0)
    seen = np.array([augmentation.draw(rng, SENSOR, labels).boxes(boxes)[1] for _ in range(200)])
    assert seen.sum(axis=1).tolist() == [1] * 200  # each corner is far from the others
    assert np.all(seen.mean(axis=0) > 0.15)
    for _ in range(50):
        frame = affine.hulls(np.array(augmentation.draw(rng, SENSOR, labels).matrix), np.array([[0.0, 0, 64, 48]]))[0]
        assert np.all(frame[:2] <= 1e-6)
        assert np.all(frame[2:] >= np.array([64, 48]) - 1e-6)


def test_zooming_in_does_nothing_without_boxes() -> None:
    augmentation = Augmentation(zoom=1.0, zoom_in_share=1.0)
    for labels in (None, Labels.empty([0, 50], sensor=SENSOR)):
        assert augmentation.draw(np.random.default_rng(0), SENSOR, labels).is_identity


def test_zooming_out_puts_the_whole_frame_into_the_frame() -> None:
    rng = np.random.default_rng(0)
    augmentation = Augmentation(zoom=1.0, zoom_in_share=0.0)
    frames = np.array(
        [
            affine.hulls(np.array(augmentation.draw(rng, SENSOR).matrix), np.array([[0.0, 0, 64, 48]]))[0]
            for _ in range(200)
        ]
    )
    assert np.all((frames >= -1e-6) & (frames <= np.array([64, 48, 64, 48]) + 1e-6))
    assert np.all((frames[:, 2] - frames[:, 0] >= 64 / 1.2 - 1e-6) & (frames[:, 3] - frames[:, 1] >= 48 / 1.2 - 1e-6))


# --- erasing ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), SENSORS)
def test_erased_rectangles_keep_to_their_area_and_aspect(seed: int, sensor: tuple[int, int]) -> None:
    size = Sensor(*sensor)
    rectangle = replace(made(affine.shift(0, 0), size), augmentation=Augmentation(erase=1.0), seed=seed).hole(0)
    if rectangle is None:  # a frame that is too flat for any
        assert min(size) < 2 or max(size) / min(size) > 1.5
        return
    x1, y1, x2, y2 = rectangle
    assert 0 <= x1 <= x2 <= size.width
    assert 0 <= y1 <= y2 <= size.height
    width, height = x2 - x1, y2 - y1  # each rounded by up to half a pixel
    area = size.width * size.height
    assert (width + 0.5) * (height + 0.5) >= 0.02 * area
    assert max(width - 0.5, 0) * max(height - 0.5, 0) <= 0.33 * area
    assert (height + 0.5) / max(width - 0.5, 1e-9) >= 0.3
    assert (width + 0.5) * 3.3 >= height - 0.5


def test_erasing_drops_what_lies_in_the_rectangle_and_nothing_else() -> None:
    events = make_events(sensor=SENSOR)
    often = Augmentation(erase=1.0, erase_area=(0.1, 0.3), erase_aspect=(0.5, 2))
    transform = replace(made(affine.flip(SENSOR)), augmentation=often, seed=5)
    moved = transform.events(events)
    erased = transform.erased(moved, window=2)
    rectangle = transform.hole(2)
    assert rectangle is not None
    inside = moved.inside(*rectangle)
    assert len(inside) > 0
    assert len(erased.inside(*rectangle)) == 0
    assert len(erased) + len(inside) == len(moved)
    labels = random_labels(1)
    assert transform.labels(labels) == replace(transform, augmentation=None).labels(labels)


def test_each_window_has_its_own_rectangle_with_the_given_chance() -> None:
    window = Augmentation.paper().draw(np.random.default_rng(0), SENSOR)
    each = [window.hole(number) for number in range(1000)]
    assert each == [window.hole(number) for number in range(1000)]
    assert np.mean([rectangle is not None for rectangle in each]) == pytest.approx(0.4, abs=0.05)
    assert len(set(each)) > 300


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"flip": 1.5}, "flip=1.5"),
        ({"erase": -0.1}, "erase=-0.1"),
        ({"rotate": float("nan")}, "rotate=nan"),
        ({"scale_range": (1.5, 0.5)}, "scale_range=.1.5, 0.5. was given; expected its lower and its upper end"),
        ({"scale_range": (0.0, 1.5)}, "scale_range=.0.0, 1.5. was given"),
        ({"scale_range": 2.0}, "scale_range=2.0"),
        ({"zoom_in_range": (0.5, 1.5)}, "zoom_in_range=.0.5, 1.5. was given"),
        ({"max_shear_degrees": 90}, "max_shear_degrees=90"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(FateError, match=named):
        Augmentation(**settings)


def test_transforms_refuse_what_they_cannot_do() -> None:
    flip = made(affine.flip(SENSOR))
    with pytest.raises(FateError, match="304×240 sensor were given; this transform is for 64×48"):
        flip.events(make_events(sensor=(240, 304)))
    with pytest.raises(FateError, match="labels of a 9×9"):
        flip.labels(Labels.empty([0], sensor=(9, 9)))


def test_scores_and_sources_stay_with_predictions() -> None:
    labels = Labels([0], [1], [2], [11], [22], [1], [4], [0.25], [LabelSource.TRACKED], sensor=SENSOR)
    after = made(affine.flip(SENSOR)).labels(labels)
    assert after.boxes.tolist() == [[53, 2, 63, 22]]
    assert (after.score[0], after.source[0], after.track_id[0]) == (0.25, LabelSource.TRACKED, 4)
