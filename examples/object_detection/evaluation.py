"""What a trained detector finds, and its mean average precision."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from object_detection.boxes import decode
from object_detection.data import Image
from object_detection.detector import Detector
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

# A box below this probability is not looked at; of two boxes of a class that overlap
# by more than that, the less probable is dropped; so many are kept of an image.
_PROBABILITY, _OVERLAP, _KEPT = 0.01, 0.45, 200

Found = tuple[np.ndarray, np.ndarray, np.ndarray]


def detect(detector: Detector, batches: tf.data.Dataset) -> list[Found]:
    """Returns boxes [n, 4], classes [n] from 1 on, and probabilities [n] of each image.

    Reference: SSD, section 3: non-maximum suppression of each class.
    """
    found: list[Found] = []
    for images, _ in batches:
        outputs = detector.read(detector.model(images, training=False))
        boxes, probabilities, classes, number = suppress(*outputs)
        rows = zip(boxes, classes + 1, probabilities, number, strict=True)
        found += [(b[:n].numpy(), c[:n].numpy(), p[:n].numpy()) for b, c, p, n in rows]
    return found


@tf.function
def suppress(outputs: tf.Tensor, defaults: tf.Tensor) -> Any:
    """Returns what `tf.image.combined_non_max_suppression` keeps of FP32 outputs."""
    boxes = decode(outputs[..., :4], defaults)
    probabilities = tf.nn.softmax(outputs[..., 4:])[..., 1:]
    return tf.image.combined_non_max_suppression(
        boxes[:, :, None],
        probabilities,
        max_output_size_per_class=_KEPT,
        max_total_size=_KEPT,
        iou_threshold=_OVERLAP,
        score_threshold=_PROBABILITY,
    )


def average_precisions(
    images: Sequence[Image], found: Sequence[Found], classes: Sequence[str]
) -> dict[str, float]:
    """Returns the average precision of each class at an overlap of one half.

    As COCO counts it, with pycocotools: the mean of the precision at 101 recalls. An
    object that is difficult counts neither as found nor as missed.

    Args:
        images: with their objects.
        found: what `detect` returned for them.
        classes: the names of the classes.
    """
    truth = [
        _coco(i, box, label) | {"area": 1.0, "iscrowd": int(difficult)}
        for i, image in enumerate(images)
        for box, label, difficult in zip(
            image.boxes, image.labels, image.difficult, strict=True
        )
    ]
    results = [
        _coco(i, box, label) | {"score": float(score)}
        for i, row in enumerate(found)
        for box, label, score in zip(*row, strict=True)
    ]
    if not results:
        return dict.fromkeys(classes, 0.0)
    # pycocotools tells what it does.
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(len(images))],
            "annotations": [row | {"id": i} for i, row in enumerate(truth, start=1)],
            "categories": [{"id": i + 1} for i in range(len(classes))],
            "info": {},
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.params.maxDets = [_KEPT]
        evaluation.params.areaRng = [[0, np.inf]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    # Of thresholds, recalls, classes, areas and numbers of boxes.
    precision = evaluation.eval["precision"][0, :, :, 0, 0].mean(axis=0)
    return dict(zip(classes, map(float, precision), strict=True))


def _coco(image: int, box: np.ndarray, label: Any) -> dict[str, Any]:
    top, left, bottom, right = map(float, box)
    return {
        "image_id": image,
        "category_id": int(label),
        "bbox": [left, top, right - left, bottom - top],
    }
