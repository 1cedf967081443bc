"""Which tests `make test` leaves to `make test-all`: a few that take long.

`make test` runs on a fresh machine with two cores in ten minutes, and every promise of
the README at least once. So a table of many cases that each take long has some of them
there; the others have the marker `full`, and `make test-all` runs them. A test that is
not listed here runs in `make test`.
"""

import fnmatch

import pytest

# By file and name, or "*" for the whole file, a test that takes long, and patterns for
# the ids of the cases that `make test` runs nevertheless. Long are tables of every
# optimizer, layer or way to train, what XLA compiles, a second or more a case, and what
# starts processes.
IN_MAKE_TEST = {
    "test_attention.py": {
        "test_attention_of_a_tensor_to_itself_has_its_gradient": [],
    },
    "test_attention_dropout.py": {
        "test_a_replica_drops_as_a_layer_alone": ["heads"],
        "test_graphs_and_xla_drop_what_eager_drops": ["heads"],
        "test_two_trainings_with_one_seed_are_equal": ["heads"],
    },
    "test_autograph.py": {
        "test_a_loop_that_calls_everything": ["kernel"],
    },
    "test_benchmark_command.py": {
        "test_a_slow_machine_takes_three_steps": [],
        "test_bytes_of_weights_and_optimizer": [],
    },
    "test_branches.py": {
        "test_unscaled_before_a_branch": ["*-graph"],
    },
    "test_build.py": {
        "test_a_setting_of_an_earlier_build_is_not_kept": [],
        "test_builds_again_after_its_ninja_was_deleted": [],
        "test_only_what_changed_is_compiled_again": [],
    },
    "test_built_site.py": {"*": []},  # after `make docs`
    "test_callbacks.py": {
        "test_a_backup_restores_the_scale_of_the_rule": [],
        "test_a_collapse_is_seen_in_every_way_to_train": [],
        "test_averages_are_swapped_in_between_epochs": [],
        "test_averages_are_swapped_in_for": [],
        "test_averages_of_a_model_that_is_not_wrapped": [],
        "test_patience_counts_across_epochs": [],
        "test_patience_counts_across_fits": [],
        "test_the_rule_of_each_fit_takes_effect_in_the_compiled_step": [],
        "test_the_scale_multiplies_the_gradient_of_the_compiled_step": [],
    },
    "test_checkpoints.py": {
        "test_restores_every_replica": [],
    },
    "test_collapsed_run.py": {
        "test_a_resumed_run_names_it_too": [],
        "test_replicas_are_not_looked_at": [],
        "test_the_planted_layer_is_named": ["forward-graph", "backward-graph"],
    },
    "test_command_line.py": {
        "test_importing_the_package_imports_no_command": [],
    },
    "test_compile_time.py": {
        "test_xla_compiles_a_deep_model_in_seconds": [],
    },
    "test_conv_lstm.py": {
        "test_training_goes_down": ["graph"],
    },
    "test_contract.py": {
        "test_16_bits_are_close_to_float64": ["*-mixed_float16-eager"],
        "test_a_batch_without_examples": ["conv-lstm2d-graph"],
        "test_float16_products_are_close_to_float64": ["dense-*", "heads-*-eager"],
        "test_float32_is_what_keras_computes": [
            "batch-norm",
            "conv2d",
            "dense",
            "heads",
            "lstm",
            "softmax",
        ],
    },
    "test_convolutions.py": {
        "test_an_empty_convolution_has_its_own_shape": ["*-float16-graph"],
    },
    "test_cpu_instructions.py": {
        "test_a_set_that_this_cpu_has_is_used": ["portable"],
        "test_another_one_is_an_error": [],
    },
    "test_distribution.py": {
        "test_a_loop_of_ones_own": [],
        "test_an_overflow_on_one_replica_is_seen_by_all": ["float16-1-*"],
        "test_muon_assigns_to_weights_on_all_replicas": [],
        "test_sparse_gradients_touch_the_rows_of_every_replica": [],
        "test_the_callback_logs_and_chooses_the_rule": [],
        "test_all_replicas_are_updated_without_merge_call": ["joint_*"],
    },
    "test_duplicates.py": {
        "test_as_by_keras_alone": ["sgd-*"],
    },
    "test_exponentials.py": {
        "test_a_row_without_a_softmax_is_nan": ["native-*"],
        "test_extreme_logits": ["native-*"],
        "test_few_cases": [],
    },
    "test_faster_rcnn.py": {
        "test_a_run_of_faster_rcnn": [],
    },
    "test_float16_products.py": {
        "test_a_model_trains_as_in_fp32": ["plain-graph"],
        "test_scaled_products_of_any_range": ["graph-*", "xla-native-both-ends"],
        "test_what_is_not_finite_comes_through": ["*-nan-*"],
        "test_quantized_is_what_keras_computes": [],
    },
    "test_foreign_files.py": {
        "test_no_code_comes_with_a_config": ["byte_code-*", "*-layer"],
    },
    "test_gemm.py": {
        "test_2000_random_shapes": [],
        "test_batches": [],
        "test_sizes": [],
    },
    "test_gemm_graphs.py": {
        "test_saved_model_in_a_new_process": [],
    },
    "test_growth.py": {
        "test_each_replica_holds_weights_masters_and_moments": [],
    },
    "test_image_classification.py": {
        "test_one_step": ["*-mixed"],
        "test_the_converged_network": [],
        "test_train_in_mixed_precision_and_resume": [],
    },
    "test_linear_cross_entropy.py": {
        "test_no_rows": ["*-float16", "reference-*"],
        "test_probabilities_do_not_round_to_zero": ["native-*", "xla-*-60"],
        "test_several_blocks": ["*-rest"],
        "test_values_and_gradients": ["*-float16"],
    },
    "test_loss_scale.py": {
        "test_field_survives_a_compiled_step": [],
        "test_random_runs_match_the_state_machine": [],
        "test_training_survives_a_damaged_scale": [],
    },
    "test_native.py": {
        "test_the_library_is_loaded_when_an_op_is_called": [],
    },
    "test_code_blocks.py": {
        "test_code_blocks": ["index.md", "quickstart.md"],
    },
    "test_fine_tuning.py": {
        "test_a_plan_learns_as_fp32": [],
        "test_a_setting": ["mixed, plan"],
        "test_a_larger_stream_changes_nothing_but_its_size": [],
    },
    "test_fp32_weights.py": {
        "test_a_change_that_is_undone_leaves_the_master": ["*-eager", "*-bfloat16-xla"],
        "test_what_is_added_and_subtracted_is_what_fp32_computes": [
            "*-eager",
            "*-bfloat16-xla",
        ],
        "test_fp32_weights_compute_like_variables": ["*-eager", "remainders-xla"],
    },
    "test_own_updates.py": {
        "test_fp32_values_follow_fp32": ["SAM-bfloat16", "average*-float16"],
    },
    "test_gallery.py": {
        "test_the_pictures_are_those_of_the_results": [],
    },
    "test_image_generation.py": {
        "test_a_resumed_run_equals_the_uninterrupted_one": [],
        "test_each_player_is_trained_by_its_own_loss": [],
        "test_the_checkpoints_are_judged": [],
        "test_train": ["mixed"],
    },
    "test_language_model.py": {
        "test_a_run_that_is_resumed_ends_as_one_that_was_not": [],
        "test_the_table_of_lost_gradients": [],
        "test_train_in_every_precision": ["fp32", "mixed"],
    },
    "test_where_it_breaks.py": {
        "test_fine_tuning": ["mixed"],
        "test_fine_tuning_begins_with_the_weights_of_pre_training": [],
        "test_image_to_image": ["mixed"],
        "test_super_resolution": ["mixed"],
        "test_the_statistics_alone": [],
    },
    "test_speech_recognition.py": {
        "test_a_run": [],
        "test_figure_2b_of_a_run_in_fp32": [],
        "test_padding_changes_nothing": ["float32-training", "float16-inference"],
    },
    "test_tour.py": {
        "test_every_cell_runs_and_says_what_the_text_says": [],
    },
    "test_translation.py": {
        "test_beam_of_one_is_greedy": [],
        "test_loss_is_fp32_and_variables_follow_the_policy": [],
        "test_source_padding_changes_nothing": [],
    },
    "test_pooling.py": {
        "test_where_tensorflow_chooses_what_xla_compiles": [],
    },
    "test_statistical_loss_scale.py": {
        "test_an_optimizer_tells_the_rule_the_largest_gradient": [
            "eager-fused-float16",
            "graph-fused-float16",
        ],
        "test_gradients_that_no_variable_has_do_not_overflow_for_ever": [],
        "test_the_rule_is_that_of_float64": ["graph", "xla"],
        "test_the_scale_stays_within_its_bounds": ["narrow"],
    },
    "test_numerics_callback.py": {
        "test_a_resumed_run_lists_each_step_once": ["torn-first"],
        "test_checkpoints_resume_between_epochs": [],
        "test_every_number_is_known": ["graph-float16"],
        "test_replicas_count_their_own_gradients": ["each"],
        "test_training_is_the_same_to_the_bit": ["graph"],
        "test_nothing_counts_after_an_interruption": ["step-True"],
    },
    "test_object_detection.py": {
        "test_every_precision_trains": [],
        "test_figure_3_of_a_run_in_fp32": [],
        "test_learns_two_images_by_heart": [],
        "test_one_step_in_every_precision": ["mixed-*"],
    },
    "test_optimizers.py": {
        "test_constraint_acts_on_the_master": [],
        "test_equals_the_bare_optimizer_to_the_bit": ["*-float16"],
        "test_equals_the_bare_optimizer_under_xla": ["adam-*"],
        "test_exclude_from_weight_decay": ["adamw-inner-*"],
        "test_option_acts_as_on_the_bare_optimizer": ["*-float32-eager"],
        "test_option_acts_on_every_optimizer": ["adam-*-float16"],
        "test_option_changes_the_result": [],
        "test_rows_without_a_gradient_are_not_written": ["*-eager"],
        "test_shapes": [],
        "test_sparse_gradients_under_xla": ["adam"],
        "test_sparse_gradients_with_duplicates": ["sgd-*", "adam-*"],
        "test_sparse_gradients_with_option": [],
    },
    "test_outside_changes.py": {
        "test_swap_ema_weights_in_evaluate": [],
        "test_swap_ema_weights_in_predict": [],
    },
    "test_overflow.py": {
        "test_fit_goes_on_past_a_bad_batch": [],
        "test_overflows_leave_no_trace": ["adam_*-float16", "sgd-float16"],
        "test_overflows_leave_no_trace_in_a_graph": [],
        "test_overflows_leave_no_trace_under_xla": [],
        "test_sparse_overflows_leave_no_trace": [],
    },
    "test_package.py": {
        "test_importing_adds_nothing_to_keras_but_itself": [],
    },
    "test_paper_claims.py": {
        "test_fit_honours_the_loss_scale": ["*-8"],
    },
    "test_plan_precision.py": {
        "test_a_model_that_fp16_suits_gets_an_empty_plan": ["mixed_float16"],
        "test_a_planned_model_trains_as_in_fp32": ["mixed_float16-xla"],
        "test_blocks_that_are_rematerialized": [],
        "test_orders_of_what_changes_a_model": ["before_convert"],
        "test_outliers_in_the_residual_stream": ["mixed_float16", "float16"],
        "test_replicas": [],
        "test_lora_and_a_plan_with_weights_stored_in_fp16": [],
    },
    "test_precision_plan_callback.py": {
        "test_a_converted_model_and_a_step_of_ones_own": [],
        "test_a_plan_that_does_not_help_is_said_once_in_a_doubled_streak": [],
        "test_a_plan_that_was_applied_is_extended": [],
        "test_a_run_that_outgrows_fp16_goes_on": ["graph"],
        "test_a_run_without_overflows_stays_as_it_is": [],
        "test_without_it_every_step_is_skipped_from_then_on": [],
    },
    "test_recurrent.py": {
        "test_inside_of_keras_wrappers": [],
    },
    "test_peak_memory.py": {"*": []},
    "test_resume.py": {
        "test_resumed_run_equals_the_uninterrupted_one": ["*-adam"],
    },
    "test_rings.py": {
        "test_make_test_runs_every_promise": [],
        "test_the_list_names_tests_and_cases_that_exist": [],
    },
    "test_step_log.py": {
        "test_every_step_is_written": ["*-graph", "fused-xla"],
    },
    "test_stored_state.py": {
        "test_a_model_goes_on_from_a_file_to_the_bit": ["both-*"],
        "test_a_saved_form_is_loaded_into_every_other": ["adam-*", "adamw*-both"],
        "test_a_thousand_steps_with_remainders": ["adam-float16"],
        "test_options_are_those_of_keras": ["accumulation, ema-both-graph"],
        "test_remainders_are_fp32_masters_to_the_bit": ["adam-*", "*-eager"],
        "test_remainders_are_fp32_masters_with_options": ["adamw-*"],
        "test_remainders_of_bfloat16": ["adam-*"],
        "test_replicas_store_what_one_process_does": ["*plain*", "*both-options*"],
        "test_the_plain_route_in_a_graph": ["adam-*"],
        "test_the_plain_route_stores_the_bits_of_the_kernel": ["adam-*", "*-both"],
    },
    "test_training_step.py": {
        "test_the_table_has_a_row_for_each_variant": [],
    },
    "test_training.py": {
        "test_a_replica_without_examples_takes_part": [],
        "test_a_residual_model_trains_and_a_skipped_step_leaves_nothing": [],
        "test_a_wrapped_optimizer_trains": ["*_model-float16-*"],
        "test_on_two_replicas": [],
        "test_a_replica_without_examples_convolves": ["Flatten-mixed_float16"],
    },
    "test_dense.py": {
        "test_quantized_is_what_keras_computes": [],
    },
    "test_precision.py": {
        "test_quantized_layers": [],
    },
    "test_without_library.py": {
        "test_plain_tensorflow_computes_and_one_warning_names_the_fix": ["no-library"],
    },
    "test_convert.py": {
        "test_there_and_back_again_leaves_no_trace": ["dense-keras"],
    },
    "test_convert_on_replicas.py": {
        "test_outside_of_the_scope": ["affine-convert"],
    },
    "test_saved_models.py": {
        "test_a_saved_model_is_loaded_in_another_process": ["converted"],
    },
    "test_replicas.py": {
        "test_training_equals_that_of_one_process": [
            "float16-accumulation",
            "mixed_float16-overwriting",
        ],
    },
    "test_lowering.py": {
        "test_xla_computes_what_the_kernels_do": ["*-float16"],
    },
    # Whole files: damage, kills and full disks, whole models, random arguments.
    "test_applications.py": {"*": []},
    "test_backup_and_restore.py": {"*": []},
    "test_damaged_checkpoints.py": {"*": []},
    "test_disk.py": {"*": []},
    "test_downloads.py": {"*": []},
    "test_diagnosing.py": {
        "test_gradients_of_a_mean_over_many_numbers_are_lost": [],
        "test_weights_without_masters_do_not_move": [],
    },
    "test_hub.py": {"*": []},
    "test_hub_models.py": {
        "test_a_family_is_seen_and_left_as_it_was": ["Gemma3-mixed_float16"],
        "test_the_attention_of_t5_is_named": [],
    },
    "test_hub_plans.py": {
        "test_a_model_without_outliers_gets_an_empty_plan": ["GPT2"],
        "test_a_planned_model_trains_as_in_fp32": ["OPT"],
        "test_other_overflows": [],
        "test_outliers_that_appear_after_50_steps": [],
        "test_scores_beyond_fp16_are_as_exact_as_fp16_queries_and_keys_allow": [],
        "test_smaller_outliers": [],
    },
    "test_inspect.py": {
        "test_models_are_seen_whole_and_left_as_they_were": [
            "nested-float16",
        ],
        "test_numbers_known_by_hand": ["mixed_float16-graph"],
        "test_random_numbers_are_those_of_a_run_without_it": [],
        "test_report_prints_and_reads_back": ["nested"],
        "test_scale_that_follows": ["mixed_float16-graph"],
    },
    "test_observation.py": {
        "test_a_pass_that_fails_leaves_the_model_as_it_was": ["call-mixed_float16"],
        "test_recurrent_layers_return_the_same_bits": [],
    },
    "test_unusual_models.py": {
        "test_a_model_is_seen_and_left_as_it_was": ["*-mixed_float16"],
    },
    "test_find_overflow.py": {
        "test_the_planted_layer_is_named": ["nested-*", "loss", "rnn-backward"],
    },
    "test_inspect_command.py": {
        "test_one_input_by_its_name": ["x"],
        "test_several_inputs_by_names_and_outputs_by_numbers": ["*-dict"],
    },
    "test_killed_runs.py": {"*": []},
    "test_killed_saves.py": {"*": []},
    "test_malformed_configs.py": {"*": []},
    "test_misuse.py": {"*": []},
    "test_overflow_storm.py": {"*": []},
    "test_second_order.py": {"*": []},
    "test_site_in_a_browser.py": {"*": []},  # after `make docs`
    "test_soak.py": {"*": []},
    # Kernels for GPUs, compiled and executed without one.
    "test_ptx_assembly.py": {
        "test_products": ["sm_70-WmmaSmall-Half-nn", "sm_80-MmaMedium-Half-nn"],
    },
    "test_ptx_gemm.py": {
        "test_an_empty_sum_has_the_epilogue_of_zero": [],
        "test_products": ["sm_70-WmmaSmall-Half-nn", "sm_80-MmaSmall-Half-nn"],
        "test_relu": ["float16-sm_80"],
        "test_the_bound_holds_where_tensor_cores_cut_off_most": ["V100-whole"],
        "test_round": ["Half-sm_80"],
    },
    "test_ptx_norm.py": {
        "test_depthwise_convolution": [],
        "test_row_normalization": [],
        "test_softmax": ["sm_75-Half"],
        "test_sums_and_batch_normalization": [],
    },
    "test_ptx_norm_mutations.py": {
        "test_a_mutation_is_noticed": ["softmax: another exponential"],
        "test_without_a_mutation_the_kernel_is_right": [],
    },
    "test_ptx_update.py": {
        "test_a_rule": ["Adam-sm_70"],
        "test_a_step_that_is_not_finite_writes_nothing": [],
        "test_check": ["1024-sm_80"],
        "test_masters_and_weights": ["SyncMastersKernel-sm_80-stochastic"],
    },
    "test_ptx_update_mutations.py": {
        "test_a_mutation_is_noticed": ["check-halves-*", "coded-exponent-*"],
        "test_fused_multiply_adds_are_noticed": [],
        "test_without_a_mutation_the_kernel_is_right": [],
    },
    "test_ptx_mutations.py": {
        "test_a_mutation_is_noticed": ["wmma-other-layout", "mma-barrier-of-a-step"],
        "test_without_a_mutation_the_product_is_right": [],
    },
}


def runs_in_make_test(file, test, case):
    """Whether `make test` runs a case of a test; `case` is "" where there is one."""
    tests = IN_MAKE_TEST.get(file, {})
    patterns = tests.get(test, tests.get("*", ["*"]))
    return any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items):
    for item in items:
        test, _, case = item.name.partition("[")
        if not runs_in_make_test(item.path.name, test, case.removesuffix("]")):
            item.add_marker("full")
