"""Boxes: default boxes, overlaps, and offsets from one box to another.

A box is (top, left, bottom, right) in shares of the image's height and width.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import tensorflow as tf

# Offsets of centres are divided by 0.1 and those of sizes by 0.2, which brings both
# near a deviation of one: the "variances" of the authors' code.
_CENTRE, _SIZE = 0.1, 0.2


def default_boxes(
    maps: Sequence[int], scales: Sequence[float], ratios: Sequence[Sequence[float]]
) -> np.ndarray:
    """Returns the default boxes of all feature maps, FP32 [boxes, 4].

    Every cell of a map has a square box of the map's scale, one of the geometric mean
    of this scale and the next, and for every ratio r one of its scale that is r times
    as wide as high, and one as many times as high as wide.

    Args:
        maps: height and width of each square feature map.
        scales: size of the boxes of each map in shares of the image, and one more.
        ratios: of each map, those beside one.

    Reference: SSD, section 2.2.
    """
    if not len(maps) == len(scales) - 1 == len(ratios):
        raise ValueError(
            "Every feature map must have a scale and a list of ratios, and there must "
            f"be one more scale. Received: {len(maps)} maps (of {list(maps)} cells), "
            f"{len(scales)} scales, {len(ratios)} lists of ratios."
        )
    boxes = []
    steps = zip(maps, pairwise(scales), ratios, strict=True)
    for cells, (scale, following), more in steps:
        shapes = [(scale, scale), (np.sqrt(scale * following),) * 2]
        for ratio in np.sqrt(more):
            shapes += [(scale / ratio, scale * ratio), (scale * ratio, scale / ratio)]
        boxes.append(_boxes_of_a_map(cells, shapes))
    return np.concatenate(boxes)


def anchors(cells: int, sizes: Sequence[float], ratios: Sequence[float]) -> np.ndarray:
    """Returns the anchors of a feature map, FP32 [cells^2 * sizes * ratios, 4].

    Args:
        cells: height and width of the map.
        sizes: the root of the area of a box, in shares of the image.
        ratios: how many times a box is as wide as high.

    Reference: Faster R-CNN, section 3.1.1.
    """
    roots = np.sqrt(ratios)
    shapes = [(size / root, size * root) for size in sizes for root in roots]
    return _boxes_of_a_map(cells, shapes)


def boxes_of_a_cell(ratios: Sequence[float]) -> int:
    """Returns how many default boxes a cell of a map with these ratios has."""
    return 2 + 2 * len(ratios)


def overlaps(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns the Jaccard overlaps [m, n] of boxes [m, 4] and [n, 4]."""
    shared = _area(
        tf.maximum(first[:, None, :2], second[:, :2]),
        tf.minimum(first[:, None, 2:], second[:, 2:]),
    )
    areas = [_area(boxes[:, :2], boxes[:, 2:]) for boxes in (first, second)]
    return tf.math.divide_no_nan(shared, areas[0][:, None] + areas[1] - shared)


def encode(boxes: tf.Tensor, defaults: tf.Tensor) -> tf.Tensor:
    """Returns the offsets [..., 4] from default boxes to boxes."""
    centres, sizes = _centres_and_sizes(boxes)
    default_centres, default_sizes = _centres_and_sizes(defaults)
    moved = (centres - default_centres) / default_sizes / _CENTRE
    return tf.concat([moved, tf.math.log(sizes / default_sizes) / _SIZE], axis=-1)


def decode(offsets: tf.Tensor, defaults: tf.Tensor) -> tf.Tensor:
    """Returns the boxes [..., 4] at the offsets from default boxes."""
    default_centres, default_sizes = _centres_and_sizes(defaults)
    centres = default_centres + offsets[..., :2] * _CENTRE * default_sizes
    halves = default_sizes * tf.exp(offsets[..., 2:] * _SIZE) / 2
    return tf.concat([centres - halves, centres + halves], axis=-1)


def _boxes_of_a_map(cells: int, shapes: Sequence[tuple[float, float]]) -> np.ndarray:
    """Returns boxes of every (height, width) around the centre of every cell."""
    centres = (np.arange(cells) + 0.5) / cells
    grid = np.stack(np.meshgrid(centres, centres, indexing="ij"), axis=-1)
    halves = np.array(shapes) / 2
    corners = [grid[:, :, None] - halves, grid[:, :, None] + halves]
    return np.concatenate(corners, axis=-1).reshape(-1, 4).astype("float32")


def _area(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.maximum(end - start, 0.0), axis=-1)


def _centres_and_sizes(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
