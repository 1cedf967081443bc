"""One of two processes with sharded state; tests/backends/test_jax_sharded_state.py.

Usage: jax_sharding_process.py RANK PORT FOLDER. Each saves below FOLDER/RANK.
"""

import json
import sys
from pathlib import Path

import jax
import keras
import numpy as np
from problems import fit, integer_rows, linear

import keras_mp

rank, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3], sys.argv[1])
jax.distributed.initialize(
    f"127.0.0.1:{port}",
    num_processes=2,
    process_id=rank,
    coordinator_bind_address=f"127.0.0.1:{port}",
)
keras.distribution.set_distribution(
    keras.distribution.DataParallel(auto_shard_dataset=False)
)


def make_model():
    adam = keras.optimizers.Adam(0.125)
    return linear("float16", adam, masters="remainders", shard_state=True)


model = make_model()
fit(model, integer_rows()[rank::2], 4)
folder.mkdir()
model.save_weights(folder / "state.weights.h5")
keras_mp.Checkpoints(folder / "checkpoints").save(1, model)
np.savez(folder / "exported.npz", *keras_mp.export_weights(model))
again = make_model()
again.optimizer.build(again.trainable_variables)
again.load_weights(folder / "state.weights.h5")
again.save_weights(folder / "again.weights.h5")
variables = again.optimizer.variables
shares = [sum(s.data.nbytes for s in v.value.addressable_shards) for v in variables]
whole = [variable.value.nbytes for variable in variables]
print(json.dumps({"whole": sum(whole), "here": sum(shares)}))
