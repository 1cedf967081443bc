"""Which tests `make test` leaves to `make test-all`: a few that take long.

`make test` runs on a fresh machine with two cores in ten minutes, and every promise of
the README at least once. So a table of many cases that each take long has some of them
there; the others have the marker `full`, and `make test-all` runs them. A test that is
not listed here runs in `make test`.
"""

import fnmatch

import pytest

# The file and the name of a test that takes long, and patterns for the ids of the cases
# that `make test` runs nevertheless.
IN_MAKE_TEST = {
    # XLA compiles each case, for a second or more.
    "test_optimizers.py::test_equals_the_bare_optimizer_under_xla": ["adam-*"],
    "test_optimizers.py::test_sparse_gradients_under_xla": ["adam"],
    "test_optimizers.py::test_rows_without_a_gradient_are_not_written": ["*-eager"],
    "test_optimizers.py::test_option_acts_as_on_the_bare_optimizer": ["*-eager"],
    "test_overflow.py::test_overflows_leave_no_trace_under_xla": ["adam_ema-*"],
    "test_fused_update.py::test_a_skipped_step_leaves_no_trace": ["*adam*"],
    "test_lowering.py::test_xla_computes_what_the_kernels_do": ["*-float16"],
    # Every optimizer under every policy, with every option.
    "test_optimizers.py::test_equals_the_bare_optimizer_to_the_bit": ["*-float16"],
    "test_optimizers.py::test_option_acts_on_every_optimizer": ["adam-*-float16"],
    "test_optimizers.py::test_option_changes_the_result": [],
    "test_optimizers.py::test_sparse_gradients_with_duplicates": ["sgd-*", "adam-*"],
    "test_optimizers.py::test_sparse_gradients_with_option": [],
    "test_optimizers.py::test_exclude_from_weight_decay": ["adamw-inner-*"],
    "test_overflow.py::test_overflows_leave_no_trace": ["*-float16"],
    # Every layer under every policy, and under XLA.
    "test_contract.py::test_16_bits_are_close_to_float64": ["*-mixed_float16-eager"],
    "test_contract.py::test_float32_is_what_keras_computes": [
        *("batch-norm", "conv2d", "dense", "heads", "lstm", "softmax")
    ],
    "test_exponentials.py::test_a_row_without_a_softmax_is_nan": ["native-*"],
    # Processes that are started, killed and started again.
    "test_backup_and_restore.py::"
    "test_backup_killed_between_its_two_files_trains_an_epoch_twice": [],
    "test_cpu_instructions.py::test_a_set_that_this_cpu_has_is_used": ["portable"],
    "test_killed_runs.py::test_a_run_killed_once": [],
    # Replicas.
    "test_distribution.py::test_muon_assigns_to_weights_on_all_replicas": [],
    "test_distribution.py::test_an_overflow_on_one_replica_is_seen_by_all": [
        "*float16-1-*"
    ],
    # Random arguments.
    "test_misuse.py::test_what_does_not_fit_is_told_and_nothing_crashes": [],
}


def runs_in_make_test(file, test, case):
    """Whether `make test` runs a case of a test; `case` is "" where there is one."""
    patterns = IN_MAKE_TEST.get(f"{file}::{test}", ["*"])
    return any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items):
    for item in items:
        test, _, case = item.name.partition("[")
        if not runs_in_make_test(item.path.name, test, case.removesuffix("]")):
            item.add_marker("full")
