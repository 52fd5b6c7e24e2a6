"""Pictures of events and boxes."""

from __future__ import annotations

import numpy as np
import pytest

from fate import Events, FateError
from fate.boxes.drawing import (
    PALETTES,
    class_colour,
    draw_boxes,
    draw_events,
    enlarge,
    enlargement,
    side_by_side,
)
from tests.conftest import make_events

BLACK = np.zeros((60, 80, 3), np.uint8)


@pytest.mark.parametrize("palette", PALETTES)
def test_a_pixel_has_the_colour_of_its_last_event_and_others_the_background(palette: str) -> None:
    events = make_events(3000)
    image = draw_events(events, palette)
    last = {(int(y), int(x)): int(p) for x, y, p in zip(events.x, events.y, events.p, strict=True)}
    colours = PALETTES[palette]
    for y in range(events.sensor.height):
        for x in range(events.sensor.width):
            expected = {None: colours.background, 0: colours.off, 1: colours.on}[last.get((y, x))]
            assert tuple(image[y, x]) == expected


def test_no_events_give_the_background() -> None:
    image = draw_events(Events.empty((10, 12)))
    assert image.shape == (10, 12, 3)
    assert (image == PALETTES["dark"].background).all()


def test_enlarging_repeats_every_pixel_as_a_square() -> None:
    image = draw_events(make_events(500))
    assert np.array_equal(enlarge(image, 3)[1::3, 2::3], image)
    assert np.array_equal(draw_events(make_events(500), factor=3), enlarge(image, 3))


@pytest.mark.parametrize(("sensor", "factor"), [((240, 304), 2), ((720, 1280), 1), ((260, 346), 1), ((128, 128), 5)])
def test_small_sensors_are_enlarged_to_at_most_the_width_asked_for(sensor: tuple[int, int], factor: int) -> None:
    assert enlargement(sensor) == factor


def test_a_box_is_drawn_on_and_inside_its_edge_only() -> None:
    image = draw_boxes(BLACK, [[10, 20, 30, 45]], colours=(255, 0, 0), thickness=1)
    painted = image.any(axis=2)
    assert painted[20, 10:30].all()
    assert painted[44, 10:30].all()
    assert painted[20:45, 10].all()
    assert painted[20:45, 29].all()
    inside = painted.copy()
    inside[[20, 44], 10:30] = False
    inside[20:45, [10, 29]] = False
    assert not inside.any()


def test_boxes_are_scaled_with_the_picture() -> None:
    boxes = np.array([[3, 4, 20, 15]], np.float32)
    assert np.array_equal(draw_boxes(BLACK, boxes, scale=2), draw_boxes(BLACK, boxes * 2))


def test_the_picture_given_is_left_alone_and_no_boxes_change_nothing() -> None:
    image = draw_events(make_events(500))
    before = image.copy()
    assert np.array_equal(draw_boxes(image, np.zeros((0, 4), np.float32)), before)
    draw_boxes(image, [[1, 1, 40, 40]], labels=["car"])
    assert np.array_equal(image, before)


def test_each_class_has_its_colour_and_its_word_stands_on_it() -> None:
    boxes = [[5, 30, 25, 50], [45, 30, 65, 50]]
    plain = draw_boxes(BLACK, boxes, class_ids=[0, 1])
    assert tuple(plain[30, 10]) == class_colour(0)
    assert tuple(plain[30, 50]) == class_colour(1)
    worded = draw_boxes(BLACK, boxes, class_ids=[0, 1], labels=["car", ""])
    assert (worded[17:28, 6:20] == class_colour(0)).all(axis=2).any()  # the tag lies above its box
    assert np.array_equal(worded[:, 40:], plain[:, 40:])  # an empty word draws nothing


@pytest.mark.parametrize("box", [[-1e9, -1e9, 1e9, 1e9], [70, 50, 500, 400], [-50, -50, -10, -10], [5, 5, 5, 5]])
def test_boxes_may_reach_out_of_the_picture(box: list[float]) -> None:
    assert draw_boxes(BLACK, [box], labels=["pedestrian 0.97"]).shape == BLACK.shape


def test_pictures_stand_side_by_side_unchanged() -> None:
    left, right = draw_events(make_events(300)), draw_events(make_events(300, (20, 30), 1), "light")
    sheet = side_by_side([left, right], ["simulated", "real"], gap=5)
    top = sheet.shape[0] - left.shape[0]
    assert top > 0
    assert np.array_equal(sheet[top:, :64], left)
    assert np.array_equal(sheet[top : top + 20, 69:], right)
    assert side_by_side([left, right], gap=5).shape == (48, 99, 3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: draw_events(make_events(9), "neon"), "palette 'neon' was given; known are dark, light"),
        (lambda: enlarge(BLACK, 0), "cannot be enlarged by 0"),
        (lambda: draw_boxes(BLACK[..., 0], []), "expected [H, W, 3] uint8"),
        (lambda: draw_boxes(BLACK, [[0, 0, 1, 1]], labels=["a", "b"]), "2 labels were given for 1 boxes"),
        (lambda: side_by_side([]), "at least one"),
        (lambda: side_by_side([BLACK], ["a", "b"]), "2 captions were given for 1 pictures"),
    ],
)
def test_what_cannot_be_drawn_gets_a_sentence(call, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FateError) as caught:
        call()
    assert sentence in str(caught.value)


def test_words_of_neighbouring_boxes_do_not_cover_each_other() -> None:
    wide = np.zeros((240, 320, 3), np.uint8)
    boxes = [[100, 100, 130, 160], [112, 101, 142, 161]]
    colours = [(250, 200, 10), (10, 200, 250)]
    alone = draw_boxes(wide, boxes[:1], labels=["pedestrian 0.90"], colours=colours[:1], text_size=14)
    both = draw_boxes(wide, boxes, labels=["pedestrian 0.90", "pedestrian 0.80"], colours=colours, text_size=14)
    first_tag = (alone == colours[0]).all(axis=2)[:100]  # what of it is above the box
    assert first_tag.sum() > 300
    assert (both == colours[0]).all(axis=2)[:100][first_tag].all()
    assert (both == colours[1]).all(axis=2)[161:].sum() > 300  # the other stands under its box
