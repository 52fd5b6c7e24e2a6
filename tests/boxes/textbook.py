"""SORT once more, from the textbook: 7×7 matrices, a loop over tracks, every pairing tried. Slow, and for tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OBSERVATION = np.eye(4, 7)


def state_of(box: Floats) -> Floats:
    """(cx, cy, area, aspect) of a box xyxy."""
    size = box[2:] - box[:2]
    return np.array([*((box[:2] + box[2:]) / 2), size[0] * size[1], size[0] / size[1]])


def box_of(state: Floats) -> Floats:
    """The other way round."""
    size = np.array([np.sqrt(state[2] * state[3]), np.sqrt(state[2] / state[3])])
    return np.concatenate([state[:2] - size / 2, state[:2] + size / 2])


def iou(a: Floats, b: Floats) -> float:
    """Of two boxes xyxy."""
    size = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    shared = size[0] * size[1]
    return float(shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared))


@dataclass
class Track:
    """One object: mean [7] and covariance [7, 7] of (cx, cy, area, aspect, vx, vy, v_area)."""

    number: int
    class_id: int
    seen_us: int
    mean: Floats
    covariance: Floats

    @staticmethod
    def begin(number: int, class_id: int, now: int, box: Floats) -> Track:
        """A new one, at rest as far as is known."""
        cx, cy, area, aspect = state_of(box)
        side = np.sqrt(area)
        deviations = [0.05 * side, 0.05 * side, 0.1 * area, 0.1 * aspect, 4 * side, 4 * side, 2 * area]
        mean = np.array([cx, cy, area, aspect, 0, 0, 0])
        return Track(number, class_id, now, mean, np.diag(np.square(deviations)))

    def predict(self, dt: float) -> None:
        """F P Fᵀ + Q, with Q of white acceleration."""
        area, aspect = self.mean[2], self.mean[3]
        if area + dt * self.mean[6] <= 0:
            self.mean[6] = 0
        transition = np.eye(7)
        transition[[0, 1, 2], [4, 5, 6]] = dt
        noise = np.zeros((7, 7))
        for i, density in enumerate([16 * area, 16 * area, (2 * area) ** 2]):
            noise[np.ix_([i, i + 4], [i, i + 4])] = density * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
        noise[3, 3] = (0.2 * aspect) ** 2 * dt
        self.mean = transition @ self.mean
        self.covariance = transition @ self.covariance @ transition.T + noise

    def correct(self, box: Floats, factor: float) -> None:
        """The Kalman gain by a matrix inverse, the covariance in Joseph's form."""
        area, aspect = self.mean[2], self.mean[3]
        side = np.sqrt(area)
        errors = factor * np.diag(np.square([0.05 * side, 0.05 * side, 0.1 * area, 0.1 * aspect]))
        gain = self.covariance @ OBSERVATION.T @ np.linalg.inv(OBSERVATION @ self.covariance @ OBSERVATION.T + errors)
        self.mean = self.mean + gain @ (state_of(box) - OBSERVATION @ self.mean)
        left = np.eye(7) - gain @ OBSERVATION
        self.covariance = left @ self.covariance @ left.T + gain @ errors @ gain.T


class TextbookTracker:
    """The same interface as ``fate.boxes.tracking.Tracker``."""

    def __init__(self, min_overlap: float = 0.3, max_age_us: int = 250_000) -> None:
        self.min_overlap, self.max_age_us = min_overlap, max_age_us
        self.tracks: list[Track] = []
        self.count, self.last_us = 0, -1

    def step(self, now: int, boxes: Floats, class_ids: NDArray[np.int64]) -> list[int]:
        """The track of each detection."""
        self.tracks = [track for track in self.tracks if now - track.seen_us <= self.max_age_us]
        dt = (now - self.last_us) / 1e6
        if self.last_us >= 0:
            for track in self.tracks:
                track.predict(dt)
        factor = max(1.0, 0.05 / dt) if self.last_us >= 0 else 1.0
        ids = [-1] * len(boxes)
        for class_id in sorted(set(class_ids.tolist())):
            mine = [track for track in self.tracks if track.class_id == class_id]
            seen = [n for n in range(len(boxes)) if class_ids[n] == class_id]
            values = [[iou(box_of(track.mean), boxes[n]) for n in seen] for track in mine]
            for t, d in best_pairs(values, self.min_overlap):
                mine[t].correct(boxes[seen[d]], factor)
                mine[t].seen_us, ids[seen[d]] = now, mine[t].number
        for n, box in enumerate(boxes):
            if ids[n] < 0:
                ids[n] = self.count
                self.tracks.append(Track.begin(self.count, int(class_ids[n]), now, box))
                self.count += 1
        self.last_us = now
        return ids


def best_pairs(values: list[list[float]], least: float) -> list[tuple[int, int]]:
    """Of all ways to pair rows and columns, at least so much each, the one of the largest sum."""

    def best(row: int, free: frozenset[int]) -> tuple[float, list[tuple[int, int]]]:
        if row == len(values):
            return 0.0, []
        found = best(row + 1, free)
        for column in free:
            if values[row][column] >= least:
                rest, pairs = best(row + 1, free - {column})
                if rest + values[row][column] > found[0]:
                    found = rest + values[row][column], [(row, column), *pairs]
        return found

    return best(0, frozenset(range(len(values[0]) if values else 0)))[1]
