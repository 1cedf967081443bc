"""What an optimizer asks of Keras's backend: one set of functions, chosen here."""

import keras

if keras.backend.backend() == "tensorflow":
    from keras_mp.optimizer.backend.tensorflow import (
        assign_on_all_replicas,
        can_update,
        check_scope,
        cond_on_all_replicas,
        current_function,
        have_values,
        is_part_of,
        is_sparse,
        outside_functions,
        refuse_several_replicas,
        replicas_in,
        run_on_each_replica,
        scope_of,
        strategy_of,
        sum_over_replicas,
    )
else:
    from keras_mp.optimizer.backend.single_program import (
        assign_on_all_replicas,
        can_update,
        check_scope,
        cond_on_all_replicas,
        current_function,
        have_values,
        is_part_of,
        is_sparse,
        outside_functions,
        refuse_several_replicas,
        replicas_in,
        run_on_each_replica,
        scope_of,
        strategy_of,
        sum_over_replicas,
    )

__all__ = [
    "assign_on_all_replicas",
    "can_update",
    "check_scope",
    "cond_on_all_replicas",
    "current_function",
    "have_values",
    "is_part_of",
    "is_sparse",
    "outside_functions",
    "refuse_several_replicas",
    "replicas_in",
    "run_on_each_replica",
    "scope_of",
    "strategy_of",
    "sum_over_replicas",
]
