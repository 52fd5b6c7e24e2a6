"""The kernels that choose proposals find what ``nms.best_proposals`` and ``nms.best_classes`` find, in the same order.

The comparisons also run without a GPU where Triton is installed and told to interpret: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed here")

from fate.models import nms
from fate.models.nms_gpu import best_pairs, best_rows
from fate.models.outputs import Outputs
from tests.gpu import DEVICE, needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize(("count", "most"), [(1, 5), (40, 512), (700, 512), (300, 7)])
@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("confidence", [0.0, 0.3, 1.1])
def test_proposals_are_the_best_in_order(count: int, most: int, classes: int, confidence: float) -> None:
    torch.manual_seed(0)
    raw = torch.randn(2, count, 5 + classes)
    raw[..., 4] = raw[..., 4].round()  # many are equal
    raw[..., 5:] = raw[..., 5:].round()
    outputs = Outputs(raw[..., :4], raw[..., 5:], raw[..., 4])
    expected = nms.best_proposals(outputs, confidence, most)
    on_device = raw.to(DEVICE)
    found = best_rows(Outputs(on_device[..., :4], on_device[..., 5:], on_device[..., 4]), confidence, most).cpu()
    torch.testing.assert_close(found[..., 4], expected.confidences)
    for window, other in enumerate(expected.boxes):  # rounding may decide between confidences that are nearly equal
        named = [set(map(tuple, rows.tolist())) for rows in (found[window, :, :4], other)]
        assert len(named[0] & named[1]) >= 0.9 * len(other)
    known = {tuple(row[:4]): index for index, row in enumerate(raw.flatten(0, 1).tolist())}
    rows = [known[tuple(row[:4])] for row in found.flatten(0, 1).tolist()]
    given = raw.flatten(0, 1)[rows]
    torch.testing.assert_close(found.flatten(0, 1)[:, 5], given[:, 5:].amax(-1).sigmoid())
    assert torch.equal(found.flatten(0, 1)[:, 6].long(), given[:, 5:].argmax(-1))
    torch.testing.assert_close(found.flatten(0, 1)[:, 7], given[:, 4].sigmoid())
    assert len({tuple(row[:4]) for row in found[0].tolist()}) == min(count, most)


def test_equal_predictions_keep_their_order() -> None:
    boxes = torch.arange(4 * 100, dtype=torch.float32).view(1, 100, 4).to(DEVICE)
    outputs = Outputs(boxes, torch.zeros(1, 100, 2, device=DEVICE), torch.zeros(1, 100, device=DEVICE))
    assert torch.equal(best_rows(outputs, 0.0, 60)[..., :4], boxes[:, :60])


@pytest.mark.parametrize(("count", "most"), [(1, 5), (300, 300), (40, 7)])
@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("confidence", [0.0, 0.3, 1.1])
def test_pairs_of_query_and_class_are_the_best_in_order(count: int, most: int, classes: int, confidence: float) -> None:
    torch.manual_seed(0)
    raw = torch.randn(2, count, 4 + classes)
    raw[..., 4:] = (4 * raw[..., 4:]).round() / 4  # many are equal
    expected = nms.best_classes(Outputs(raw[..., :4], raw[..., 4:]), confidence, most)
    on_device = raw.to(DEVICE)
    found = best_pairs(Outputs(on_device[..., :4], on_device[..., 4:]), confidence, most).cpu()
    torch.testing.assert_close(found[..., 4], expected.confidences)
    there = expected.confidences >= 0
    assert torch.equal(found[there][:, :4], expected.boxes[there])
    torch.testing.assert_close(found[there][:, 5], expected.scores[there])
    assert torch.equal(found[there][:, 6].long(), expected.class_ids[there])
    assert torch.equal(found[..., 7], found[..., 5])
