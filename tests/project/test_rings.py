"""`make test` runs every promise of the README and the site at least once."""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rings

ROOT = Path(__file__).resolve().parents[2]

# Words of the README and of the site, by page, and the tests that hold what they
# promise: file and name, in brackets a case. Times are no promises of tests but of
# `make bench`; what is said of the CUDA kernels is tested in C++, by `make test-cpp`.
PROMISES = {
    "README.md": {
        'keras_mp.wrap("adam"), loss="mse"': [
            "test_package.py::test_one_line_is_enough",
            "test_callbacks.py::test_the_scale_is_logged_in_every_way_to_train",
        ],
        "translator in FP32 and in mixed precision": [
            "test_experiments.py::test_precisions",
            "test_translation.py::test_train_in_mixed_precision_and_resume",
        ],
        "The installation stops with the reason if the native library": [
            "test_build.py::test_a_build_that_fails_is_an_error",
            "test_build.py::test_without_what_it_needs_the_package_has_no_library",
        ],
        "A weight of 1.0 receives 1,000 updates of 1e-4": [
            "test_paper_claims.py::test_a_thousand_small_updates_with_masters"
        ],
        "holds 8 bytes for each parameter in place of 16": [
            "test_stored_state.py::test_bytes_per_parameter"
        ],
        "With `keras.optimizers.SGD(1e-4)` alone it prints": [
            "test_paper_claims.py::test_a_thousand_small_updates_without_masters"
        ],
        "English to French, LSTM with attention": [
            "test_translation.py::test_train_in_mixed_precision_and_resume"
        ],
        "print(keras_mp.inspect(model, x, y))": [
            "test_inspect.py::test_models_are_seen_whole_and_left_as_they_were[nested-float16]",
            "test_inspect.py::test_report_prints_and_reads_back[nested]",
        ],
        "keras_mp.plan_precision(model, x, y).apply(model)": [
            "test_plan_precision.py::test_a_planned_model_trains_as_in_fp32[mixed_float16-xla]"
        ],
    },
    "docs/guides/optimizer_state.md": {
        "the exact master, bit for bit, so training is the same": [
            "test_stored_state.py::test_remainders_are_fp32_masters_to_the_bit[adam-eager]",
            "test_stored_state.py::test_remainders_are_fp32_masters_to_the_bit[adam-xla]",
            "test_remainders.py::test_random_masters[float16]",
        ],
        "Accumulated gradients and averages are FP32": [
            "test_stored_state.py::test_remainders_are_fp32_masters_with_options[adamw-ema-kernel]",
            "test_stored_state.py::test_remainders_are_fp32_masters_with_options[adamw-accumulation-kernel]",
        ],
        "no update was larger than four times": [
            "test_long_run.py::test_no_update_is_out_of_proportion[adam-200]"
        ],
        "saved with one form loads into any other": [
            "test_stored_state.py::test_a_saved_form_is_loaded_into_every_other[adam-both]"
        ],
        "a run that is killed and resumed ends bit-identical": [
            "test_stored_state.py::test_a_model_goes_on_from_a_file_to_the_bit[both-plain]"
        ],
        "On several replicas the first one updates compressed state": [
            "test_stored_state.py::test_replicas_store_what_one_process_does[both-plain]"
        ],
    },
    "docs/guides/on_a_gpu.md": {
        "compute a small known problem, once in a process": [
            "test_first_use.py::test_a_right_product_is_checked_once_and_used"
        ],
        "If a kernel returns a wrong result, keras_mp does not use it and warns once": [
            "test_first_use.py::test_a_wrong_product_is_turned_off_with_one_warning[fp16-sums]",
            "test_first_use.py::test_a_wrong_step_is_turned_off_with_one_warning[adam]",
        ],
        "`KERAS_MP_CHECK=0` skips the check": [
            "test_first_use.py::test_no_check_where_it_is_switched_off"
        ],
        "By default they are TensorFlow operations on a GPU": [
            "test_first_use.py::test_reductions_on_a_gpu_are_formulas_by_default"
        ],
        "results differ, they are not used, and one warning says so": [
            "test_first_use.py::test_a_wrong_reduction_is_turned_off_with_one_warning[nan-Softmax]"
        ],
        "Without a GPU it runs on the CPU, and says so in the first line": [
            "test_gpu_command.py::test_a_report_on_a_cpu"
        ],
        "`none:` and why: no driver": [
            "test_native.py::test_build_info_says_why_there_is_no_gpu"
        ],
    },
    "docs/guides/models_that_overflow.md": {
        "A model that FP16 suits gets an empty plan": [
            "test_plan_precision.py::test_a_model_that_fp16_suits_gets_an_empty_plan[mixed_float16]"
        ],
        "A layer that still turns finite values into infinite ones": [
            "test_plan_precision.py::test_overflows_inside_of_code_of_ones_own"
        ],
        "no loss scale is needed": [
            "test_float16_products.py::test_small_gradients_are_kept_without_a_loss_scale"
        ],
        "The matrix products of dense layers, attention and pointwise convolutions": [
            "test_float16_products.py::test_every_product_is_of_fp16_numbers[dense-plain]",
            "test_float16_products.py::test_every_product_is_of_fp16_numbers[heads-plain]",
            "test_float16_products.py::test_every_product_is_of_fp16_numbers[conv2d-plain]",
            "test_float16_products.py::test_all_others_compute_in_fp32",
        ],
        "It may be set on a built layer": [
            "test_float16_products.py::test_the_policy_of_a_built_layer_can_be_set"
        ],
    },
    "docs/index.md": {
        "weights stored in FP16 with FP32 masters": [
            "test_optimizers.py::test_equals_the_bare_optimizer_to_the_bit[adam-float16]"
        ],
        "200 overflows in a row": [
            "test_overflow.py::test_200_overflows_in_a_row_and_recovery"
        ],
        "an overflow on the second replica only": [
            "test_distribution.py::test_an_overflow_on_one_replica_is_seen_by_all"
        ],
        "several replicas, gradient clipping": [
            "test_replicas.py::test_training_equals_that_of_one_process"
        ],
        "several replicas, gradient accumulation or `ema_overwrite_frequency`": [
            "test_replicas.py::test_training_equals_that_of_one_process"
        ],
        "constant loss scale": [
            "test_paper_claims.py::test_fit_honours_the_loss_scale"
        ],
        "skipped steps": [
            "test_callbacks.py::test_the_logs_of_each_epoch",
            "test_callbacks.py::test_the_message_names_the_first_variable_that_overflowed",
        ],
        "a scale that has collapsed": [
            "test_callbacks.py::test_a_collapse_is_raised_with_advice",
            "test_callbacks.py::test_warn_warns_once_in_each_fit",
        ],
        "growth, back-off, hysteresis, bounds": [
            "test_loss_scale.py::test_field_acts",
            "test_loss_scale.py::test_a_number_out_of_range_is_refused",
        ],
        "weights loaded between steps": [
            "test_outside_changes.py::test_a_change_is_picked_up_however_it_is_made"
        ],
        "L2 on FP16 weights of 1e-4": [
            "test_regularizers.py::test_what_it_mends",
            "test_paper_claims.py::test_l2_on_small_fp16_weights",
        ],
        "a weight gradient of 2^-30 under `mixed_float16`": [
            "test_dense.py::test_the_gradient_of_an_fp32_kernel_is_not_flushed"
        ],
        "what FP16 loses of *your* model": [
            "test_inspect.py::test_report_prints_and_reads_back[nested]"
        ],
        "a model that overflows FP16": [
            "test_plan_precision.py::test_a_planned_model_trains_as_in_fp32[mixed_float16-xla]"
        ],
        "wrapping twice, un-scaling twice, forgetting to scale": [
            "test_custom_loops.py::test_what_cannot_be_wrapped",
            "test_custom_loops.py::test_unscale_twice",
            "test_forgotten_scale_loss.py::test_a_train_step_of_ones_own",
        ],
    },
    "docs/using.md": {
        "dynamic: starts at 2**15": ["test_loss_scale.py::test_dynamic_is_the_default"],
        "loss_scale=128": ["test_loss_scale.py::test_wrap_takes"],
        'rounding="stochastic", seed=1': [
            "test_rounding.py::test_draws_are_reproducible_by_seed_and_differ_between_calls"
        ],
        'all_reduce_dtype="float16"': [
            "test_distribution.py::test_the_sum_of_two_replicas"
        ],
        "The scale changes once a joint step": [
            "test_sharing.py::test_a_step_backs_off_once_whoever_overflowed"
        ],
        "A saved model keeps the sharing": [
            "test_sharing.py::test_a_saved_gan_shares_its_scale",
            "test_saved_files.py::test_two_optimizers_still_share_their_scale",
        ],
        "A config alone cannot, and warns": [
            "test_sharing.py::test_a_config_alone_cannot_share_and_says_how"
        ],
        "Keras makes it from a config": [
            "test_serialization.py::test_keras_makes_the_optimizer_from_a_config"
        ],
        "`optimizer` is any Keras optimizer, its name or its config": [
            "test_optimizers.py::test_the_table_has_every_optimizer_of_keras",
            "test_custom_loops.py::test_a_name_and_a_config_can_be_wrapped",
        ],
        "it is saved and restored with the model, masters included, bit for bit": [
            "test_resume.py::test_resumed_run_equals_the_uninterrupted_one",
            "test_saved_files.py::test_trains_on_as_before",
        ],
        "it registers the classes and the ops of the file": [
            "test_training.py::test_a_saved_model_loads_where_keras_mp_is_imported",
            "test_saved_models.py::test_a_saved_model_is_loaded_in_another_process",
        ],
        "`python -m keras_mp info` says why": ["test_native.py::test_info"],
        "which needs nothing of it": [
            "test_saved_models.py::test_a_saved_model_is_loaded_in_another_process"
        ],
        "A custom loop": ["test_custom_loops.py::test_loop"],
        "State: `optimizer.loss_scale`": [
            "test_loss_scale.py::test_the_counters_of_the_optimizer"
        ],
        'keras_mp.export_weights(model, "float32")': [
            "test_export.py::test_order_and_dtype_of_every_weight"
        ],
    },
    "docs/paper.md": {
        "round to nearest even, or stochastic rounding": [
            "test_rounding.py::test_between_two_halves_the_nearest_wins_and_a_tie_goes_to_even",
            "test_rounding.py::test_stochastic_rounding_is_unbiased",
        ],
    },
    "docs/how_it_works.md": {
        "with nothing changed but the scale and its counters": [
            "test_overflow.py::test_overflows_leave_no_trace"
        ],
        "beyond the range of FP16 it becomes ±65504": [
            "test_paper_claims.py::test_a_master_outside_the_range_of_fp16"
        ],
        "Adam, AdamW, Nadam, Adamax, Adagrad, Adadelta, RMSprop, Lion and Ftrl": [
            "test_fused_update.py::test_the_optimizers_that_are_fused"
        ],
        "an option that the kernels do not support": [
            "test_fused_update.py::test_an_option_that_is_not_known_is_left_to_the_optimizer"
        ],
        "in eager mode, in a graph and under XLA": [
            "test_optimizers.py::test_equals_the_bare_optimizer_in_a_graph",
            "test_optimizers.py::test_equals_the_bare_optimizer_under_xla",
        ],
        "keras_mp.convert(model)": ["test_convert.py::test_sequential"],
        "the arguments are those of Keras": [
            "test_contract.py::test_weights_config_and_shapes_are_those_of_keras"
        ],
        "a weight gradient, un-scaled": [
            "test_gemm_gradients.py::test_alpha_unscales_the_weight_gradient_in_fp32"
        ],
        "changes nothing but their class: weights, compiled state and optimizer": [
            "test_convert.py::test_a_model_of_its_own_class_goes_on_with_its_optimizer"
        ],
        "It warns of what it leaves": ["test_convert.py::test_the_report"],
        "is the way back": ["test_convert.py::test_to_keras_is_the_inverse"],
        "three routes, whose results agree to one rounding": [
            "test_gemm.py::test_case",
            "test_contract.py::test_16_bits_are_close_to_float64",
        ],
        "`KERAS_MP_OPS=auto|native|reference` chooses": [
            "test_native.py::test_auto_is_the_default",
            "test_native.py::test_reference_does_not_look",
        ],
        "`KERAS_MP_CPU_ISA` the instruction set": [
            "test_cpu_instructions.py::test_a_set_that_this_cpu_has_is_used[portable]"
        ],
        "plain TensorFlow runs there, and a warning says so": [
            "test_devices.py::test_a_gpu_without_kernels_is_told_of_once"
        ],
        "a fused bias and activation before the one rounding": [
            "test_dense.py::test_an_activation_is_applied_before_the_rounding"
        ],
        "a gradient of 2^-30 reaches the FP32 weight": [
            "test_dense.py::test_the_gradient_of_an_fp32_kernel_is_not_flushed"
        ],
        "has FP32 scores, which stay finite beyond 65,504": [
            "test_attention.py::test_scores_beyond_65504"
        ],
        "softmax of 100,000 equal logits": [
            "test_softmax.py::test_100_000_equal_logits"
        ],
        "log-softmax of them": ["test_exponentials.py::test_many_equal_logits"],
        "softmax of logits of -60,000 beside a masked 0": [
            "test_softmax.py::test_logits_below_those_that_are_masked_in_keras"
        ],
        "`cumsum` and `segment_sum` of 4,096 ones": [
            "test_reductions.py::test_many_ones"
        ],
        "average pooling of 40,000 and 40,000": [
            "test_pooling.py::test_means_of_numbers_without_a_sum_in_fp16"
        ],
        "unit normalization of four times 3,000": [
            "test_normalization.py::test_vectors_get_length_1"
        ],
        "moving variance of inputs with deviation 400, policy `float16`": [
            "test_normalization.py::test_a_variance_of_160_000"
        ],
        "moving mean of 300 after 2,000 steps": [
            "test_normalization.py::test_averages_of_2000_steps_are_those_of_fp32"
        ],
        "one batch with an inf, in the moving mean and variance": [
            "test_normalization.py::test_an_overflow_leaves_the_statistics_of_its_channel"
        ],
        "spectral normalization under `mixed_float16`": [
            "test_normalization.py::test_an_fp32_kernel_is_divided_by_its_singular_value"
        ],
        "whose own error is stated and tested for each function": [
            "test_exponentials.py::test_cases",
            "test_reductions.py::test_cases",
        ],
        "Gamma, beta and the moving statistics are FP32 under every policy": [
            "test_normalization.py::test_weights_are_fp32_under_float16_too"
        ],
        "never an FP32 copy": [
            "test_memory.py::test_a_block_holds_at_most_0_55_of_its_bytes_in_fp32"
        ],
    },
    "docs/performance.md": {
        "one op in the graph either way": [
            "test_compile_time.py::test_each_layer_adds_as_many_instructions",
            "test_lowering.py::test_xla_computes_what_the_kernels_do",
        ],
    },
    "docs/diagnosing.md": {
        "the layer where values overflow": [
            "test_find_overflow.py::test_the_planted_layer_is_named[nested-backward]"
        ],
        "the paper's rule, over 10 batches": [
            "test_suggest_loss_scale.py::test_rule_of_the_paper"
        ],
        "the shares that are zero": [
            "test_inspect.py::test_numbers_known_by_hand[mixed_float16-graph]"
        ],
        "needs loss scaling": ["test_inspect.py::test_verdict_on_scaling"],
        "whether it needs masters": ["test_inspect.py::test_verdict_on_masters"],
        'report.plot("report.png")': ["test_inspect.py::test_plot_is_written"],
        "Three cases, from the symptom": [
            "test_diagnosing.py::test_attention_is_named"
        ],
    },
    # What is promised of JAX and PyTorch is tested by `make test-backends`.
    "docs/guides/jax_and_pytorch.md": {
        "an error that says so": [
            "test_package.py::test_another_backend_is_refused_with_advice"
        ],
        "the Keras layer, and a warning": [
            "test_training.py::test_on_another_backend_it_is_the_layer_of_keras"
        ],
    },
    "docs/command_line.md": {
        "`python -m keras_mp` and": [
            "test_command_line.py::test_python_m_is_the_command_line",
            "test_command_line.py::test_the_console_script_is_main",
        ],
        "the command line itself is wrong": [
            "test_command_line.py::test_a_wrong_command_line_ends_with_2"
        ],
        "It prints what [`keras_mp.inspect`]": [
            "test_inspect_command.py::test_the_report_is_that_of_inspect"
        ],
        "The arrays of the batch have these names": [
            "test_inspect_command.py::test_several_inputs_by_names_and_outputs_by_numbers",
            "test_inspect_command.py::test_what_is_no_batch",
        ],
        "| option | |": [
            "test_inspect_command.py::test_its_arguments_are_passed_on",
            "test_inspect_command.py::test_the_picture_is_drawn",
            "test_inspect_command.py::test_a_layer_of_the_users_own_is_imported",
        ],
        "A file that exists is not overwritten": [
            "test_inspect_command.py::test_what_cannot_be_written_or_imported",
            "test_benchmark_command.py::test_an_old_file_is_kept",
        ],
        "A model with a Lambda layer is refused": [
            "test_inspect_command.py::test_what_is_no_model[lambda]"
        ],
        "times a training step of four small models": [
            "test_benchmark_command.py::test_tables_and_json"
        ],
    },
    "docs/limits.md": {
        "the update runs in plain TensorFlow, and a warning says why": [
            "test_update.py::test_a_gpu_that_has_no_kernels_is_told_of"
        ],
        "models with weights on two devices": [
            "test_fused_update.py::test_weights_on_two_devices_are_left_to_the_optimizer"
        ],
        "raises a TypeError before it calls the optimizer": [
            "test_paper_claims.py::test_keras_alone_cannot_fit_fp16_with_a_regularizer"
        ],
        "keras_mp.regularize_in_fp32(model)": [
            "test_regularizers.py::test_penalties_in_a_fit"
        ],
        "for other regularizers it raises an error that says what to do": [
            "test_regularizers.py::test_the_callback_says_what_to_call"
        ],
        "In your own layer cast the loss": [
            "test_regularizers.py::test_a_loss_that_a_layer_adds_is_cast_by_it"
        ],
        "`keras_mp.SwapEMAWeights`": [
            "test_outside_changes.py::test_swap_ema_weights_in_validation"
        ],
        "`CSVLogger` and `TensorBoard` show the loss scale": [
            "test_callbacks.py::test_csv_logger_sees_the_logs_if_it_stands_after",
            "test_callbacks.py::test_tensorboard_writes_the_logs",
        ],
        "for others, and on other backends, each is the Keras layer": [
            "test_contract.py::test_float32_is_what_keras_computes"
        ],
        "`tape.jacobian` and `tf.vectorized_map` run the native ops in a loop": [
            "test_vectorized.py::test_a_jacobian_is_that_of_a_loop",
            "test_vectorized.py::test_a_vectorized_map_is_that_of_each_element",
        ],
        "under `float16` that kernel is rounded to FP16 at each step": [
            "test_normalization.py::test_an_fp16_kernel_is_rounded_once"
        ],
        "goes on after a worker has died": [
            "test_multiworker.py::test_a_killed_worker_and_an_overflow_in_one"
        ],
        "the mean of each share has the same weight": [
            "test_distribution.py::test_in_an_uneven_batch_each_replica_counts_as_much"
        ],
        "if it is within one rounding of its master": [
            "test_rounding.py::test_a_rounding_never_differs_from_its_master"
        ],
    },
}
# Pages of instructions and of measurements: what they say of the package is promised by
# the others, and their code blocks are run by tests/docs/test_code_blocks.py.
WITHOUT_PROMISES = [
    *("changelog.md", "convert.md", "faq.md", "gallery.md", "loss_scale.md"),
    *("quickstart.md", "recipes.md", "reliability.md", "versions.md"),
]
# Tables whose rows promise something each: the page, and the words before it.
TABLES = [
    ("docs/index.md", "What is different from Keras's `mixed_float16`"),
    ("docs/how_it_works.md", "Normalization, softmax, pooling"),
]


COLLECT = "-m pytest --collect-only -q -p no:cacheprovider"


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def words(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def in_make_test():
    """Whether `make test` runs each `(file, test, case)` of `make test-all`."""
    listed = subprocess.run(
        [sys.executable, *COLLECT.split()],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = re.findall(r"^\S*?(\w+\.py)::(\w+)(?:\[(.*)\])?$", listed.stdout, re.M)
    assert found, listed.stdout + listed.stderr
    return {test: rings.runs_in_make_test(*test) for test in found}


def test_every_page_has_its_promises():
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    without = {f"docs/{name}" for name in WITHOUT_PROMISES}
    assert pages == {page for page in PROMISES if page.count("/") == 1} | without


@pytest.mark.parametrize("page", PROMISES)
def test_the_words_stand_on_the_page(page):
    text = words(text_of(page))
    assert [quote for quote in PROMISES[page] if quote not in text] == []


def test_files_that_a_page_names_hold_its_promises():
    named = set(re.findall(r"`(test_\w+\.py)`", text_of("docs/index.md")))
    tests = [
        t for quotes in PROMISES.values() for each in quotes.values() for t in each
    ]
    assert named <= {test.partition("::")[0] for test in tests}


@pytest.mark.parametrize(("page", "heading"), TABLES)
def test_every_row_is_a_promise(page, heading):
    section = text_of(page).partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.M)[0]
    _, _, *rows = re.findall(r"^\| ?([^|]+?) ?\|", table, re.M)
    quotes = [quote for quotes in PROMISES.values() for quote in quotes]
    assert [row for row in rows if not any(quote in row for quote in quotes)] == []


def test_make_test_runs_every_promise(in_make_test):
    held = {
        f"{file}::{test}{suffix}"
        for (file, test, case), runs in in_make_test.items()
        if runs
        for suffix in ("", f"[{case}]")
    }
    promised = [
        test
        for promises in PROMISES.values()
        for tests in promises.values()
        for test in tests
    ]
    assert [test for test in promised if test not in held] == []


def test_the_list_names_tests_and_cases_that_exist(in_make_test):
    found = collections.defaultdict(set)
    for (file, test, _), runs in in_make_test.items():
        found[file, test].add(runs)
        found[file, "*"].add(runs)
    for file, tests in rings.IN_MAKE_TEST.items():
        for test, patterns in tests.items():
            # Some cases are left to `make test-all`; where there are patterns, not all.
            expected = {False, True} if patterns else {False}
            assert found[file, test] == expected, (file, test)
