"""One of two processes that train together; tests/backends/test_jax_distribution.py.

Usage: jax_process.py RANK PORT
"""

import json
import sys

import jax
import keras
from problems import fit, one_weight, rows_with_an_overflow, snapshot, variables_of

rank, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(
    f"127.0.0.1:{port}",
    num_processes=2,
    process_id=rank,
    coordinator_bind_address=f"127.0.0.1:{port}",
)
keras.distribution.set_distribution(
    keras.distribution.DataParallel(auto_shard_dataset=False)
)
model = one_weight(optimizer=keras.optimizers.Adam(0.125))
# Of each batch of two, one row is here.
fit(model, rows_with_an_overflow(where=1)[rank::2], 1)
everything = [
    *variables_of(model.trainable_variables, model.optimizer),
    *model.optimizer.variables,
]
print(
    json.dumps(
        {
            "devices": jax.device_count(),
            "here": len(model.optimizer.loss_scale.value.addressable_shards),
            "state": [array.tolist() for _, array in snapshot(*everything)],
        }
    )
)
