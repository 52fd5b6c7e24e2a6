"""Makes ``src/fate/simulation/data/people.npz``: pictures of body parts, from which the simulator draws people.

    pip install anny==0.6.2
    python scripts/bake_people.py src/fate/simulation/data/people.npz

Anny (Apache-2.0, with MakeHuman's shapes under CC0) is needed here alone. Each body stands upright with hanging arms.
Its skin is cut at the joints into parts, and each part is drawn without perspective from eight directions, every 45°:
0 is from behind, 2 from its right side, 4 from the front. Head and trunk are symmetric, so five directions are enough;
of the limbs only the right ones are drawn, since a left limb is the mirror image of a right one. The first start of
Anny takes some minutes. The same versions give the same file.
"""

from __future__ import annotations

import sys
import zipfile
from io import BytesIO
from pathlib import Path

import anny
import numba
import numpy as np
import torch
from scipy.ndimage import gaussian_filter

#: gender (0: man, 1: woman), age (1/3: child, 2/3: adult, 1: old), muscle, weight, height, proportions, arms apart in °
SHAPES = {
    "man": (0.0, 0.62, 0.5, 0.5, 0.36, 0.5, 9),
    "man-tall-thin": (0.0, 0.60, 0.4, 0.2, 0.50, 0.7, 6),
    "man-heavy": (0.0, 0.75, 0.4, 0.95, 0.36, 0.4, 15),
    "man-strong": (0.0, 0.65, 0.95, 0.6, 0.42, 0.8, 16),
    "man-short": (0.0, 0.70, 0.5, 0.6, 0.24, 0.3, 10),
    "man-old": (0.0, 0.98, 0.3, 0.55, 0.32, 0.4, 8),
    "woman": (1.0, 0.62, 0.5, 0.45, 0.42, 0.6, 9),
    "woman-thin": (1.0, 0.58, 0.4, 0.15, 0.45, 0.8, 7),
    "woman-heavy": (1.0, 0.78, 0.3, 0.95, 0.38, 0.4, 15),
    "woman-tall": (1.0, 0.62, 0.6, 0.5, 0.52, 0.7, 10),
    "woman-old": (1.0, 0.98, 0.3, 0.65, 0.34, 0.4, 9),
    "youth": (0.3, 0.47, 0.4, 0.35, 0.45, 0.5, 8),
    "girl": (1.0, 0.32, 0.4, 0.4, 0.45, 0.5, 8),
    "child": (0.5, 0.22, 0.4, 0.5, 0.42, 0.5, 10),
    "man-slim": (0.0, 0.58, 0.6, 0.3, 0.40, 0.9, 7),
    "man-stout": (0.0, 0.85, 0.3, 0.8, 0.30, 0.2, 13),
    "woman-short": (1.0, 0.70, 0.4, 0.6, 0.32, 0.4, 11),
    "boy": (0.0, 0.34, 0.5, 0.45, 0.48, 0.5, 9),
}
#: Of each part: texels down and across, directions of view, and the beginnings of its bones' names. Cloth hides the
#: relief of the skin: the normals of some parts are blurred by this many texels.
BLUR = {"trunk": 3.0, "thigh": 2.0, "shank": 1.5, "upper_arm": 1.5, "foot": 1.0}
PARTS = {
    "trunk": (72, 60, 5, ("root", "pelvis", "spine", "clavicle", "shoulder")),
    "head": (52, 44, 5, ("neck", "head", "eye")),
    "upper_arm": (48, 24, 8, ("upperarm",)),
    "forearm": (60, 28, 8, ("lowerarm", "wrist", "finger", "metacarpal")),
    "thigh": (64, 36, 8, ("upperleg",)),
    "shank": (60, 28, 8, ("lowerleg",)),
    "foot": (28, 36, 8, ("foot", "toe")),
}
#: The bone whose head is the joint that a part turns about.
JOINTS = {
    "head": "neck01",
    "upper_arm": "upperarm01.R",
    "forearm": "lowerarm01.R",
    "thigh": "upperleg01.R",
    "shank": "lowerleg01.R",
    "foot": "foot.R",
}
#: A face belongs to every part that has this share of its weights: parts overlap at their joints.
OVERLAP = 0.12
FINER = 6  # rays along the side of a texel
HAIR_THICKNESS = 0.012  # metres


@numba.njit(cache=False)
def draw(points, values, faces, picture, depth):  # type: ignore[no-untyped-def]
    """Draw triangles nearest first: points [n, 3] in pixels and depth, values [n, c], into picture [h, w, c]."""
    for a, b, c in faces:
        xa, ya, xb, yb, xc, yc = points[a, 0], points[a, 1], points[b, 0], points[b, 1], points[c, 0], points[c, 1]
        area = (xb - xa) * (yc - ya) - (xc - xa) * (yb - ya)
        if abs(area) < 1e-9:
            continue
        for row in range(max(int(min(ya, yb, yc)), 0), min(int(max(ya, yb, yc)) + 1, picture.shape[0])):
            for column in range(max(int(min(xa, xb, xc)), 0), min(int(max(xa, xb, xc)) + 1, picture.shape[1])):
                x, y = column + 0.5, row + 0.5
                share_b = ((x - xa) * (yc - ya) - (xc - xa) * (y - ya)) / area
                share_c = ((xb - xa) * (y - ya) - (x - xa) * (yb - ya)) / area
                share_a = 1.0 - share_b - share_c
                if share_a < 0 or share_b < 0 or share_c < 0:
                    continue
                z = share_a * points[a, 2] + share_b * points[b, 2] + share_c * points[c, 2]
                if z < depth[row, column]:
                    depth[row, column] = z
                    for i in range(picture.shape[2]):
                        ends = values[a, i], values[b, i], values[c, i]
                        picture[row, column, i] = share_a * ends[0] + share_b * ends[1] + share_c * ends[2]


def turn(axis: int, degrees: float) -> torch.Tensor:
    """A rotation [3, 3] about one axis."""
    one, other = [(1, 2), (2, 0), (0, 1)][axis]
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    matrix = torch.eye(3)
    matrix[one, one], matrix[one, other], matrix[other, one], matrix[other, other] = cos, -sin, sin, cos
    return matrix


def stand(model: anny.Anny, shape: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and bone heads of an upright body: (right, down, forward) in metres from the ground under its hips."""
    pose = torch.eye(4)[None, None].repeat(1, model.bone_count, 1, 1)
    for side, sign in (("R", 1.0), ("L", -1.0)):
        for bone, axis, degrees in (
            ("upperarm01", 1, sign * (shape[6] - 42.0)),
            ("lowerarm01", 0, 38.0),
            ("upperleg01", 1, sign * -4.0),
        ):
            pose[0, model.bone_labels.index(f"{bone}.{side}"), :3, :3] = turn(axis, degrees)
    phenotype = dict(zip(("gender", "age", "muscle", "weight", "height", "proportions"), shape, strict=False))
    body = model(pose_parameters=pose, phenotype_kwargs=phenotype)
    vertices, heads = body["vertices"][0].numpy(), body["bone_poses"][0, :, :3, 3].numpy()
    hips = heads[[model.bone_labels.index(f"upperleg01.{side}") for side in "LR"]].mean(axis=0)
    origin = np.array([hips[0], hips[1], vertices[:, 2].min()])
    return (vertices - origin)[:, [0, 2, 1]] * (-1, -1, -1), (heads - origin)[:, [0, 2, 1]] * (-1, -1, -1)


def normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Unit normals of vertices, outward."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    across = np.cross(b - a, c - a)
    total = np.zeros_like(vertices)
    for i in range(3):
        np.add.at(total, faces[:, i], across)
    unit = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)
    away = np.sum(unit * (vertices - vertices.mean(axis=0)), axis=1).mean()
    return unit if away > 0 else -unit


def paint_face(vertices: np.ndarray, eye: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of hair, and brightness of skin, of each vertex; dark eyes, brows and mouth. ``head`` [n]: its vertices."""
    crown, front, back = vertices[head, 1].min(), vertices[head, 2].max(), vertices[head, 2].min()
    size = (eye[1] - crown) * 2.0  # from the crown to the chin
    height = 1 - (vertices[:, 1] - crown) / size
    forward = (vertices[:, 2] - back) / (front - back)
    hair = np.where(height > 0.22 + 0.72 * forward, 1.0, 0.0)
    skin = np.ones(len(vertices))
    aside, below = (np.abs(vertices[:, 0]) - abs(eye[0])) / size, (vertices[:, 1] - eye[1]) / size
    facing = forward > 0.6
    skin[facing & (np.hypot(aside / 0.075, below / 0.035) < 1)] = 0.35
    skin[facing & (np.abs(aside) < 0.11) & (np.abs(below + 0.085) < 0.022)] = 0.4
    skin[facing & (np.abs(vertices[:, 0]) / size < 0.11) & (np.abs(below - 0.33) < 0.03)] = 0.5
    return hair, skin


def bake(model: anny.Anny) -> dict[str, np.ndarray]:
    """All pictures, their windows in metres from their joints, and the joints."""
    faces = model.faces.numpy()
    weights = np.zeros((len(model.vertex_bone_indices), model.bone_count))
    vertex = np.arange(len(weights))[:, None]
    np.add.at(weights, (vertex, model.vertex_bone_indices.numpy()), model.vertex_bone_weights.numpy())
    names = np.array(model.bone_labels)
    pictures: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    windows: dict[str, list[list[float]]] = {part: [] for part in PARTS}
    joints, soles, heights = [], [], []
    for shape in SHAPES.values():
        vertices, heads = stand(model, shape)
        eye = heads[names == "eye.R"][0]
        is_head = weights[:, np.char.startswith(names, "head")].sum(axis=1) > 0.9
        hair, skin = paint_face(vertices, eye, is_head)
        unit = normals(vertices, faces)
        vertices = vertices + (HAIR_THICKNESS * hair * is_head)[:, None] * unit
        hips = heads[np.char.startswith(names, "upperleg01")].mean(axis=0)
        joint = {"trunk": hips, **{part: heads[names == bone][0] for part, bone in JOINTS.items()}}
        joints.append([joint[part] for part in PARTS])
        heights.append(-vertices[:, 1].min())
        for part, (rows, columns, views, prefixes) in PARTS.items():
            own = np.array([name.startswith(prefixes) and not name.endswith(".L") for name in names])
            if part == "trunk":
                own = np.array([name.startswith(prefixes) for name in names])
            chosen = faces[weights[:, own].sum(axis=1)[faces].mean(axis=1) > OVERLAP]
            used = np.unique(chosen)
            if part == "foot":
                soles.append([vertices[used, 2].min(), vertices[used, 2].max()])
            for view in range(views):
                cos, sin = np.cos(view * np.pi / 4), np.sin(view * np.pi / 4)
                relative = vertices - joint[part]
                x, y = relative[:, 0] * cos + relative[:, 2] * sin, relative[:, 1]
                depth = relative[:, 2] * cos - relative[:, 0] * sin
                left, top, right, bottom = x[used].min(), y[used].min(), x[used].max(), y[used].max()
                right_of, away = unit[:, 0] * cos + unit[:, 2] * sin, unit[:, 2] * cos - unit[:, 0] * sin
                values = np.stack([right_of, unit[:, 1], np.ones(len(x)), hair * is_head, skin, away], axis=1)
                fine = np.zeros((rows * FINER, columns * FINER, 6))
                scale = np.array([columns / (right - left), rows / (bottom - top)]) * FINER
                points = np.stack([(x - left) * scale[0], (y - top) * scale[1], depth], axis=1)
                draw(points, values, chosen, fine, np.full(fine.shape[:2], np.inf))
                fine[..., :2] *= np.where(fine[..., 5:] > 0, -1.0, 1.0)  # the inside of the skin, seen at a cut
                total = fine.reshape(rows, FINER, columns, FINER, 6).sum(axis=(1, 3))
                alpha = total[..., 2] / FINER**2
                if part in BLUR:
                    sigma = (BLUR[part], BLUR[part], 0)
                    smooth = gaussian_filter(total[..., :2], sigma) / np.maximum(
                        gaussian_filter(total[..., 2:3], sigma), 1e-9
                    )
                    total[..., :2] = smooth * total[..., 2:3]
                mean = total / np.maximum(total[..., 2:3], 1e-9)
                kept = [alpha, (mean[..., 0] * (alpha > 0) + 1) / 2, (mean[..., 1] * (alpha > 0) + 1) / 2]
                if part == "head":
                    kept += [mean[..., 3], mean[..., 4]]
                pictures[part].append(np.clip(np.rint(np.stack(kept) * 63), 0, 63).astype(np.uint8))
                windows[part].append([left, top, right, bottom])
    count = len(SHAPES)
    result: dict[str, np.ndarray] = {"shapes": np.array(list(SHAPES)), "parts": np.array(list(PARTS))}
    result |= {"joints": np.array(joints), "soles": np.array(soles), "heights": np.array(heights)}
    for part in PARTS:
        stacked = np.stack(pictures[part])
        result[part] = stacked.reshape(count, -1, *stacked.shape[1:])
        result[f"{part}_window"] = np.array(windows[part]).reshape(count, -1, 4)
    return {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in result.items()}


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A compressed .npz without times of day, so that the same arrays give the same file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            content = BytesIO()
            np.save(content, array)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    save(Path(sys.argv[1]), bake(anny.Anny().to(dtype=torch.float32)))
