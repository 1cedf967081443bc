"""Trains on several machines, and goes on after any of them has died.

Start this on every machine, with its own index, and again whenever it fails:

    export TF_CONFIG='{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
                       "task": {"type": "worker", "index": 0}}'
    until python multiworker.py data.npz /shared/checkpoints; do sleep 1; done

When a worker dies the others fail too, with an UnavailableError: at once if it was the
first, else after some 10 seconds, for TensorFlow takes nobody into a cluster that runs.
Started again, all go on from the last checkpoint of the first worker, which lies in a
folder that all can read. The cluster has workers only, no chief; one that dies when the
first is done stays dead. Without TF_CONFIG this trains on one machine.

TensorFlow listens at the port of TF_CONFIG on all network interfaces, and asks nobody
for a password: keep it behind a firewall.
"""

import argparse
import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_mp


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="an .npz with rows of x and of y")
    parser.add_argument("checkpoints", type=Path, help="a folder that all can read")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16, help="rows, of all workers")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    return parser.parse_args(argv)


def make_model(inputs, outputs):
    keras.config.set_dtype_policy("float16")
    return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(outputs)])


def shares(strategy, x, y, batch, done):
    """Returns what each replica gets of the batches, but for those that are done."""

    def share(context):
        pipelines, replicas = context.num_input_pipelines, context.num_replicas_in_sync
        return (
            tf.data.Dataset.from_tensor_slices((x, y))
            .shuffle(len(x), seed=0)
            .repeat()
            .shard(pipelines, context.input_pipeline_id)
            .batch(context.get_per_replica_batch_size(batch))
            .skip(done * replicas // pipelines)
        )

    return strategy.distribute_datasets_from_function(share)


def make_step(strategy, model, optimizer):
    """Returns a function that trains on a batch, and returns its mean loss."""
    variables = model.trainable_variables

    def on_each_replica(x, y):
        with tf.GradientTape() as tape:
            # Keras's losses divide by the number of replicas, as the gradients of all
            # are added up. A loss of your own has to do so.
            loss = keras.losses.MeanAbsoluteError()(y, model(x))
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, variables), variables)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(on_each_replica, batch), axis=None)

    return step


def check_all_begin_at(done, strategy):
    """Stops where a worker does not see the checkpoint that the others do."""
    each = strategy.run(lambda: tf.constant(done))
    total = int(strategy.reduce("SUM", each, axis=None))
    if total != done * strategy.num_replicas_in_sync:
        raise SystemExit(
            f"All workers must begin at the same step. Received: {done} here, and "
            "another one elsewhere. Can all read the folder of the checkpoints?"
        )


def main(argv=None, strategy=None):
    args = parse_args(argv)
    with np.load(args.data) as data:
        x, y = data["x"].astype("float16"), data["y"].astype("float32")

    strategy = strategy or tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model(x.shape[1], y.shape[1])
        optimizer = keras_mp.wrap(keras.optimizers.Adam(0.01, clipnorm=1.0))
        # Here, since one of several replicas cannot create variables.
        optimizer.build(model.trainable_variables)

    # All workers save, as it may take all to read a variable. The first one's counts.
    index = (
        json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    )
    own = args.checkpoints / f"worker{index}" if index else args.checkpoints
    checkpoints = keras_mp.Checkpoints(own)
    done = keras_mp.Checkpoints(args.checkpoints).restore(model, optimizer)
    check_all_begin_at(done, strategy)

    step = make_step(strategy, model, optimizer)
    batches = iter(shares(strategy, x, y, args.batch, done))
    for number in range(done + 1, args.steps + 1):
        loss = step(next(batches)).numpy()
        scale, skipped = optimizer.loss_scale.numpy(), optimizer.skipped_steps.numpy()
        print(f"step {number} loss {loss} scale {scale} skipped {skipped}", flush=True)
        if number % args.save_every == 0 or number == args.steps:
            checkpoints.save(number, model, optimizer)


if __name__ == "__main__":
    main()
