"""Where points of a panel lie, worked out one panel at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fate.simulation.art.panels import Body, Panel


def panel_points(panel: Panel, coordinates: npt.ArrayLike, phase: float | None = None) -> npt.NDArray[np.float64]:
    """Where texture coordinates [n, 2] lie in the body's frame, [n, 3]; with a gait phase the panel swings."""
    u, v = np.asarray(coordinates, np.float64).reshape(-1, 2).T[..., None]
    points = panel.origin + u * panel.across + v * panel.down
    if panel.swing is None or phase is None:
        return points
    angle = panel.swing.amplitude * np.sin(phase + panel.swing.phase)
    right, below = panel.across / np.linalg.norm(panel.across), panel.down / np.linalg.norm(panel.down)
    x, y = (points - panel.swing.pivot) @ right, (points - panel.swing.pivot) @ below
    turned_x, turned_y = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
    return panel.swing.pivot + turned_x[:, None] * right + turned_y[:, None] * below


def hits_before(body: Body, viewer: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> bool:
    """Whether a panel that faces the viewer, and is solid there, lies between the viewer and the target."""
    for panel in body.panels:
        if np.dot(np.cross(panel.across, panel.down), panel.origin - viewer) <= 0:
            continue
        u, v, share = np.linalg.solve(np.stack([panel.across, panel.down, viewer - target], 1), viewer - panel.origin)
        if 0 <= u < 1 and 0 <= v < 1 and 0 < share < 1:
            rows, columns = panel.texture.shape
            if panel.texture.alpha[int(v * rows), int(u * columns)] >= 0.5:
                return True
    return False
