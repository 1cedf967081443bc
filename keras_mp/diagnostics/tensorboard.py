"""A sample of a run as TensorBoard shows it."""

from typing import Any

from keras_mp.diagnostics.numerics import Entry
from keras_mp.diagnostics.sample_log import Sample


def write_summaries(writer: Any, sample: Sample) -> None:
    """Writes the scalars and the histogram of each entry, `numerics/<path>/<kind>`.

    The histogram is over exponents: the bucket from e to e + 1 has the magnitudes in
    `[2**e, 2**(e + 1))`. Zeros, infinities and NaN have no exponent.

    Args:
        writer: `tf.summary.SummaryWriter`.
        sample: `Sample`.
    """
    with writer.as_default(step=sample.step):
        _write("numerics/loss_scale", "scalars", sample.loss_scale)
        for entry in sample.entries:
            name = f"numerics/{entry.path}/{entry.kind}"
            for part, value in _scalars(entry).items():
                _write(f"{name}/{part}", "scalars", value)
            exponents = entry.statistics.exponents.items()
            buckets = [[e, e + 1, count] for e, count in sorted(exponents)]
            if buckets:
                _write(f"{name}/exponents", "histograms", buckets)
    writer.flush()


def _scalars(entry: Entry) -> dict[str, float]:
    found = entry.statistics
    elements = max(found.elements, 1)
    return {
        "lost": entry.lost_share,
        "subnormal": found.subnormals / elements,
        "overflowing": found.overflows / elements,
        "largest": found.largest or 0.0,
    }


def _write(name: str, plugin: str, value: Any) -> None:
    """Writes for a plugin of TensorBoard, which need not be installed for it.

    `tf.summary.histogram` would also count the numbers itself, with other buckets.
    """
    import tensorflow as tf

    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin),
        data_class="DATA_CLASS_SCALAR" if plugin == "scalars" else "DATA_CLASS_TENSOR",
    )
    dtype = tf.float32 if plugin == "scalars" else tf.float64
    tf.summary.write(name, tf.constant(value, dtype), metadata=metadata)
