"""The module paths that users import from, as one table; the names live in the packages that own them.

`accel.utils.operations.gather` is `accel_ops.gather`: a module listed here has a file of its own, which asks
`face` for a name when it is used, and `face` knows in whose public list it stands. A name that none
offers yet is an AttributeError, as for any module.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from accel_state.lazy import attach

PLACES = (
    "accel_state",
    "accel_state.environment",
    "accel_state.availability",
    "accel_ops",
    "accel_checkpoint",
    "accel_data",
    "accel_backends",
    "accel_bigmodel",
    "accel_trackers",
    "accel_launch",
    "accel",
    "accel.checkpoints",
    "accel.general_functions",
)
"""Modules whose public lists are asked, in this order; torch-free, so that asking costs little."""

FACES: dict[str, str] = {
    "accel.accelerator": """
        AORecipeKwargs AcceleratedOptimizer AcceleratedScheduler Accelerator AcceleratorState
        AutocastKwargs DTENSOR_PYTORCH_VERSION DataLoaderConfiguration DataLoaderDispatcher
        DeepSpeedPlugin DistributedDataParallelKwargs DistributedType DynamoBackend FP8BackendType
        FP8RecipeKwargs FSDP2_PYTORCH_VERSION FSDP_PYTORCH_VERSION FullyShardedDataParallelPlugin
        GeneralTracker GradScalerKwargs GradientAccumulationPlugin GradientState InitProcessGroupKwargs
        KwargsHandler LOGGER_TYPE_TO_CLASS LoggerType MODEL_NAME MSAMPRecipeKwargs MegatronLMPlugin
        PROFILE_PATTERN_NAME ParallelismConfig PartialState PrecisionType ProfileKwargs
        ProjectConfiguration RNGType SAFE_WEIGHTS_INDEX_NAME SAFE_WEIGHTS_NAME SAFE_WEIGHTS_PATTERN_NAME
        SCALER_NAME TERecipeKwargs TorchDynamoPlugin TorchTensorParallelPlugin WEIGHTS_INDEX_NAME
        WEIGHTS_NAME WEIGHTS_PATTERN_NAME apply_fp8_autowrap check_os_kernel
        clean_state_dict_for_safetensors compare_versions compile_regions compile_regions_deepspeed
        compile_regions_fsdp2 convert_model convert_model_to_fp8_ao convert_outputs_to_fp32
        ensure_weights_retied extract_model_from_parallel filter_trackers fsdp2_apply_ac
        fsdp2_canonicalize_names fsdp2_prepare_model fsdp2_switch_optimizer_parameters gather
        gather_object get_fsdp2_grad_scaler get_grad_scaler get_logger get_mixed_precision_context_manager
        get_model_tp_size get_pretty_name get_state_dict_offloaded_model has_offloaded_params
        is_bf16_available is_bitsandbytes_multi_backend_available is_compiled_module
        is_deepspeed_available is_lomo_available is_megatron_lm_available is_mlu_available
        is_msamp_available is_musa_available is_npu_available is_torch_version is_torch_xla_available
        is_torchao_available is_transformer_engine_available is_xpu_available load_accelerator_state
        load_custom_state load_fsdp_model load_fsdp_optimizer model_has_dtensor pad_across_processes
        parse_choice_from_env prepare_data_loader recursively_apply reduce release_memory save
        save_accelerator_state save_custom_state save_fsdp_model save_fsdp_optimizer skip_first_batches
        wait_for_everyone
    """,
    "accel.state": """
        AcceleratorState DistributedType DynamoBackend GradientAccumulationPlugin GradientState
        PartialState SageMakerDistributedType ThreadLocalSharedDict check_cuda_fp8_capability
        check_cuda_p2p_ib_support deepspeed_required do_nothing get_cpu_distributed_information
        get_int_from_env is_datasets_available is_deepspeed_available is_fp8_available is_habana_gaudi1
        is_hpu_available is_initialized is_mlu_available is_mps_available is_musa_available
        is_neuron_available is_npu_available is_sdaa_available is_torch_xla_available is_xccl_available
        is_xpu_available parse_choice_from_env parse_flag_from_env set_numa_affinity
    """,
    "accel.data_loader": """
        BatchSamplerShard DataLoaderAdapter DataLoaderDispatcher DataLoaderShard DataLoaderStateMixin
        DistributedType GradientState IterableDatasetShard PartialState RNGType SeedableRandomSampler
        SkipBatchSampler SkipDataLoader broadcast broadcast_object_list compare_versions concatenate
        find_batch_size get_data_structure get_logger get_sampler initialize_tensors is_datasets_available
        is_torch_version is_torch_xla_available is_torchdata_stateful_dataloader_available
        prepare_data_loader send_to_device skip_first_batches slice_tensors synchronize_rng_states
    """,
    "accel.optimizer": """
        AcceleratedOptimizer AcceleratorState DistributedType GradientState honor_type is_lomo_available
        is_torch_xla_available move_to_device patch_optimizer_step
    """,
    "accel.scheduler": """
        AcceleratedScheduler AcceleratorState GradientState
    """,
    "accel.big_modeling": """
        AlignDevicesHook CpuOffload LayerwiseCastingHook OffloadedWeightsLoader
        SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING UserCpuOffloadHook add_hook_to_module
        attach_align_device_hook attach_align_device_hook_on_blocks attach_layerwise_casting_hooks
        check_cuda_p2p_ib_support check_device_map cpu_offload cpu_offload_with_hook disk_offload
        dispatch_model extract_submodules_state_dict find_tied_parameters get_balanced_memory
        infer_auto_device_map init_empty_weights init_on_device is_bnb_available is_mlu_available
        is_musa_available is_neuron_available is_npu_available is_sdaa_available is_xpu_available
        load_checkpoint_and_dispatch load_checkpoint_in_model offload_state_dict parse_flag_from_env
        recursive_getattr retie_parameters
    """,
    "accel.hooks": """
        AlignDevicesHook CpuOffload LayerwiseCastingHook ModelHook PartialState PrefixedDataset
        SequentialHook UserCpuOffloadHook add_hook_to_module attach_align_device_hook
        attach_align_device_hook_on_blocks attach_execution_device_hook clear_device_cache find_device
        get_non_persistent_buffers is_mlu_available is_musa_available is_npu_available
        named_module_tensors recursive_getattr remove_hook_from_module remove_hook_from_submodules
        send_to_device set_module_tensor_to_device
    """,
    "accel.inference": """
        PartialState build_pipeline calculate_maximum_sizes convert_bytes copy_tensor_to_devices
        find_pippy_batch_size generate_device_map ignorant_find_batch_size infer_auto_device_map
        is_pippy_available pad_input_tensors pippy_forward prepare_pippy send_to_device
    """,
    "accel.launchers": """
        AcceleratorState ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION PartialState PrecisionType
        PrepareForLaunch are_libraries_initialized check_cuda_p2p_ib_support debug_launcher
        get_current_device_type get_gpu_info is_mps_available is_rocm_available is_torch_version
        notebook_launcher patch_environment test_launch
    """,
    "accel.local_sgd": """
        Accelerator DistributedType LocalSGD
    """,
    "accel.logging": """
        MultiProcessAdapter PartialState get_logger
    """,
    "accel.tracking": """
        AimTracker ClearMLTracker CometMLTracker DVCLiveTracker GeneralTracker LOGGER_TYPE_TO_CLASS
        LoggerType MLflowTracker PartialState SwanLabTracker TensorBoardTracker TrackioTracker
        WandBTracker compare_versions filter_trackers get_available_trackers get_logger is_aim_available
        is_clearml_available is_comet_ml_available is_dvclive_available is_mlflow_available
        is_swanlab_available is_tensorboard_available is_trackio_available is_wandb_available listify
        on_main_process register_tracker_class str_to_bool
    """,
    "accel.checkpointing": """
        MODEL_NAME OPTIMIZER_NAME PartialState RNG_STATE_NAME SAFE_MODEL_NAME SAFE_WEIGHTS_NAME
        SAMPLER_NAME SCALER_NAME SCHEDULER_NAME WEIGHTS_NAME get_logger get_pretty_name is_cuda_available
        is_hpu_available is_mlu_available is_musa_available is_neuron_available is_sdaa_available
        is_torch_version is_torch_xla_available is_xpu_available load load_accelerator_state
        load_custom_state save save_accelerator_state save_custom_state
    """,
    "accel.parallelism_config": """
        DeepSpeedSequenceParallelConfig DistributedType ParallelismConfig TorchContextParallelConfig
        TorchTensorParallelConfig is_torch_version
    """,
    "accel.utils": """
        AORecipeKwargs AbstractTrainStep AutocastKwargs BertTrainStep BnbQuantizationConfig
        CannotPadNestedTensorWarning ComputeEnvironment CustomDtype DDPCommunicationHookType
        DataLoaderConfiguration DeepSpeedPlugin DeepSpeedSequenceParallelConfig
        DistributedDataParallelKwargs DistributedType DynamoBackend FP8RecipeKwargs
        FullyShardedDataParallelPlugin GPTTrainStep GatheredParameters GradScalerKwargs
        GradientAccumulationPlugin InitProcessGroupKwargs KwargsHandler LoggerType
        MITA_PROFILING_AVAILABLE_PYTORCH_VERSION MODEL_NAME MSAMPRecipeKwargs MegatronLMDummyDataLoader
        MegatronLMDummyScheduler MegatronLMPlugin OPTIMIZER_NAME OffloadedWeightsLoader
        PROFILE_PATTERN_NAME ParallelismConfig PrecisionType PrefixedDataset PrepareForLaunch
        ProfileKwargs ProjectConfiguration RNGType RNG_STATE_NAME SAFE_MODEL_NAME SAFE_WEIGHTS_INDEX_NAME
        SAFE_WEIGHTS_NAME SAFE_WEIGHTS_PATTERN_NAME SAMPLER_NAME SCALER_NAME SCHEDULER_NAME
        SageMakerDistributedType T5TrainStep TERecipeKwargs TORCH_DISTRIBUTED_OPERATION_TYPES
        TORCH_LAUNCH_PARAMS TensorInformation TorchContextParallelConfig TorchDynamoPlugin
        TorchTensorParallelConfig TorchTensorParallelPlugin WEIGHTS_INDEX_NAME WEIGHTS_NAME
        WEIGHTS_PATTERN_NAME XPU_PROFILING_AVAILABLE_PYTORCH_VERSION add_model_config_to_megatron_parser
        align_module_device apply_fp8_autowrap are_libraries_initialized
        avg_losses_across_data_parallel_group broadcast broadcast_object_list calculate_maximum_sizes
        check_cuda_fp8_capability check_cuda_p2p_ib_support check_device_map check_os_kernel
        check_tied_parameters_in_config check_tied_parameters_on_same_device
        clean_state_dict_for_safetensors clear_environment compare_versions compile_regions
        compile_regions_deepspeed compile_regions_fsdp2 compute_module_sizes concatenate
        contextual_fp8_autocast convert_bytes convert_dict_to_env_variables convert_file_size_to_int
        convert_model convert_model_to_fp8_ao convert_outputs_to_fp32 convert_to_fp32
        copy_tensor_to_devices deepspeed_required disable_fsdp_ram_efficient_loading dtype_byte_size
        enable_fsdp_ram_efficient_loading ensure_weights_retied extract_model_from_parallel
        extract_submodules_state_dict filter_first_and_last_linear_layers find_batch_size find_device
        find_executable_batch_size find_tied_parameters fsdp2_apply_ac fsdp2_canonicalize_names
        fsdp2_load_full_state_dict fsdp2_prepare_model fsdp2_switch_optimizer_parameters gather
        gather_object get_balanced_memory get_cpu_distributed_information get_current_device_type
        get_data_structure get_fsdp2_grad_scaler get_gpu_info get_grad_scaler get_int_from_env
        get_max_layer_size get_max_memory get_mixed_precision_context_manager get_model_tp_size
        get_module_children_bottom_up get_pretty_name has_4bit_bnb_layers has_ao_layers
        has_compiled_regions has_offloaded_params has_transformer_engine_layers honor_type
        id_tensor_storage ignorant_find_batch_size infer_auto_device_map initialize_tensors install_xla
        is_4bit_bnb_available is_8bit_bnb_available is_aim_available is_amdsmi_available is_bf16_available
        is_bitsandbytes_multi_backend_available is_bnb_available is_boto3_available is_clearml_available
        is_comet_ml_available is_compiled_module is_cuda_available is_datasets_available
        is_deepspeed_available is_dvclive_available is_fp16_available is_fp8_available is_habana_gaudi1
        is_hpu_available is_import_timer_available is_lomo_available is_matplotlib_available
        is_megatron_lm_available is_mlflow_available is_mlu_available is_mps_available is_msamp_available
        is_musa_available is_namedtuple is_neuron_available is_npu_available is_pandas_available
        is_peft_available is_peft_model is_pippy_available is_port_in_use is_pynvml_available
        is_pytest_available is_rich_available is_rocm_available is_sagemaker_available
        is_schedulefree_available is_sdaa_available is_swanlab_available is_tensor_information
        is_tensorboard_available is_timm_available is_torch_tensor is_torch_version is_torch_xla_available
        is_torchao_available is_torchdata_available is_torchdata_stateful_dataloader_available
        is_torchvision_available is_trackio_available is_transformer_engine_available
        is_transformer_engine_mxfp8_available is_transformers_available is_triton_available
        is_wandb_available is_weights_only_available is_xccl_available is_xpu_available listify load
        load_and_quantize_model load_checkpoint_in_model load_fsdp_model load_fsdp_optimizer
        load_offloaded_weight load_offloaded_weights load_state_dict merge_dicts merge_fsdp_weights
        model_has_dtensor named_module_tensors offload_state_dict offload_weight pad_across_processes
        pad_input_tensors parse_choice_from_env parse_flag_from_env patch_environment
        prepare_deepspeed_cmd_env prepare_multi_gpu_env prepare_sagemager_args_inputs
        prepare_simple_launcher_cmd_env prepare_tpu purge_accelerate_environment recursive_getattr
        recursively_apply reduce release_memory retie_parameters save save_fsdp_model save_fsdp_optimizer
        save_offload_index send_to_device set_module_tensor_to_device set_numa_affinity set_seed
        slice_tensors str_to_bool synchronize_rng_state synchronize_rng_states torchao_required tqdm
        wait_for_everyone write_basic_config
    """,
    "accel.utils.dataclasses": """
        AORecipeKwargs AutocastKwargs BETA_CP_AVAILABLE_PYTORCH_VERSION BETA_TP_AVAILABLE_PYTORCH_VERSION
        BETA_TP_AVAILABLE_TRANSFORMERS_VERSION BaseEnum BnbQuantizationConfig ComputeEnvironment
        CustomDtype DDPCommunicationHookType DataLoaderConfiguration DeepSpeedPlugin
        DeepSpeedSequenceParallelConfig DistributedDataParallelKwargs DistributedType DynamoBackend
        EnumWithContains FP8BackendType FP8RecipeKwargs FSDP2_PYTORCH_VERSION FSDP_AUTO_WRAP_POLICY
        FSDP_BACKWARD_PREFETCH FSDP_SHARDING_STRATEGY FullyShardedDataParallelPlugin GradScalerKwargs
        GradientAccumulationPlugin InitProcessGroupKwargs KwargsHandler LoggerType
        MITA_PROFILING_AVAILABLE_PYTORCH_VERSION MODEL_CONFIGS_TO_MEGATRON_PARSERS MSAMPRecipeKwargs
        MegatronLMPlugin PrecisionType ProfileKwargs ProjectConfiguration RNGType SageMakerDistributedType
        TERecipeKwargs TensorInformation TorchContextParallelConfig TorchDynamoPlugin
        TorchTensorParallelConfig TorchTensorParallelPlugin XPU_PROFILING_AVAILABLE_PYTORCH_VERSION
        add_model_config_to_megatron_parser compare_versions get_module_class_from_name is_cuda_available
        is_hpu_available is_mlu_available is_msamp_available is_musa_available is_neuron_available
        is_npu_available is_rocm_available is_torch_version is_torchao_available
        is_transformer_engine_available is_xpu_available parse_bert_config parse_flag_from_env
        parse_glm4_moe_config parse_gpt2_config parse_llama_config parse_t5_config str_to_bool
    """,
    "accel.utils.deepspeed": """
        AcceleratedOptimizer AcceleratedScheduler DeepSpeedEngineWrapper DeepSpeedOptimizerWrapper
        DeepSpeedSchedulerWrapper DistributedType DummyOptim DummyScheduler HfDeepSpeedConfig
        compare_versions get_active_deepspeed_plugin is_bnb_available map_pytorch_optim_to_deepspeed
    """,
    "accel.utils.megatron_lm": """
        AbstractTrainStep AcceleratedOptimizer AcceleratedScheduler BertTrainStep GPTTrainStep
        MegatronEngine MegatronLMDummyDataLoader MegatronLMDummyScheduler MegatronLMOptimizerWrapper
        MegatronLMSchedulerWrapper T5TrainStep avg_losses_across_data_parallel_group finish_mpu_init
        gather_across_data_parallel_groups initialize is_megatron_lm_available model_provider_func
        prepare_data_loader prepare_model_optimizer_scheduler prepare_optimizer prepare_scheduler
        recursively_apply send_to_device
    """,
    "accel.utils.environment": """
        CPUInformation are_libraries_initialized check_cuda_fp8_capability check_cuda_p2p_ib_support
        clear_environment convert_dict_to_env_variables get_cpu_distributed_information
        get_current_device_type get_driver_version get_gpu_info get_int_from_env override_numa_affinity
        parse_choice_from_env parse_flag_from_env patch_environment purge_accelerate_environment
        set_numa_affinity str_to_bool
    """,
    "accel.utils.memory": """
        clear_device_cache find_executable_batch_size is_cuda_available is_hpu_available is_mlu_available
        is_mps_available is_musa_available is_neuron_available is_npu_available is_sdaa_available
        is_xpu_available release_memory should_reduce_batch_size
    """,
    "accel.utils.constants": """
        BETA_CP_AVAILABLE_PYTORCH_VERSION BETA_SP_AVAILABLE_DEEPSPEED_VERSION
        BETA_TP_AVAILABLE_PYTORCH_VERSION BETA_TP_AVAILABLE_TRANSFORMERS_VERSION CUDA_DISTRIBUTED_TYPES
        DEEPSPEED_MULTINODE_LAUNCHERS DTENSOR_PYTORCH_VERSION
        ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION FSDP2_PYTORCH_VERSION FSDP2_STATE_DICT_TYPE
        FSDP_AUTO_WRAP_POLICY FSDP_BACKWARD_PREFETCH FSDP_MODEL_NAME FSDP_PYTORCH_VERSION
        FSDP_SHARDING_STRATEGY FSDP_STATE_DICT_TYPE MITA_PROFILING_AVAILABLE_PYTORCH_VERSION MODEL_NAME
        OPTIMIZER_NAME PROFILE_PATTERN_NAME RNG_STATE_NAME SAFE_MODEL_NAME SAFE_WEIGHTS_INDEX_NAME
        SAFE_WEIGHTS_NAME SAFE_WEIGHTS_PATTERN_NAME SAGEMAKER_PARALLEL_EC2_INSTANCES
        SAGEMAKER_PYTHON_VERSION SAGEMAKER_PYTORCH_VERSION SAGEMAKER_TRANSFORMERS_VERSION SAMPLER_NAME
        SCALER_NAME SCHEDULER_NAME STR_OPERATION_TO_FUNC SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING
        TORCH_DISTRIBUTED_OPERATION_TYPES TORCH_DYNAMO_MODES TORCH_LAUNCH_PARAMS WEIGHTS_INDEX_NAME
        WEIGHTS_NAME WEIGHTS_PATTERN_NAME XPU_PROFILING_AVAILABLE_PYTORCH_VERSION
    """,
    "accel.utils.modeling": """
        AcceleratorState AutocastKwargs CustomDtype DistributedType SAFE_WEIGHTS_NAME WEIGHTS_INDEX_NAME
        WEIGHTS_NAME align_module_device calculate_maximum_sizes check_device_map check_device_same
        check_tied_parameters_in_config check_tied_parameters_on_same_device clean_device_map
        clear_device_cache compute_module_sizes compute_module_total_buffer_size convert_file_size_to_int
        dtype_byte_size fallback_allocate find_tied_parameters get_balanced_memory get_grad_scaler
        get_max_layer_size get_max_memory get_mixed_precision_context_manager get_module_leaves
        get_module_size_with_ties get_non_persistent_buffers get_state_dict_from_offload
        get_state_dict_offloaded_model has_offloaded_params id_tensor_storage infer_auto_device_map
        is_hpu_available is_mlu_available is_mps_available is_musa_available is_npu_available
        is_peft_available is_peft_model is_sdaa_available is_torch_version is_torch_xla_available
        is_tqdm_available is_xpu_available load_checkpoint_in_model load_offloaded_weight
        load_offloaded_weights load_state_dict named_module_tensors offload_weight retie_parameters
        save_offload_index set_module_tensor_to_device tqdm
    """,
    "accel.utils.offload": """
        OffloadedWeightsLoader PrefixedDataset extract_submodules_state_dict load_offloaded_weight
        offload_state_dict offload_weight save_offload_index
    """,
    "accel.utils.operations": """
        AcceleratorState CannotPadNestedTensorWarning ConvertOutputsToFp32 DistributedOperationException
        DistributedType GatheredParameters PartialState TENSOR_INT_TO_DTYPE TENSOR_TYPE_TO_INT
        TORCH_DISTRIBUTED_OPERATION_TYPES TensorInformation broadcast broadcast_object_list
        chained_operation concatenate convert_outputs_to_fp32 convert_to_fp32 copy_tensor_to_devices
        find_batch_size find_device gather gather_object gather_tensor_shape get_data_structure get_shape
        honor_type ignorant_find_batch_size initialize_tensors is_namedtuple is_npu_available
        is_tensor_information is_torch_distributed_available is_torch_tensor is_torch_version
        is_torch_xla_available is_torch_xpu_tensor listify pad_across_processes pad_input_tensors
        recursively_apply reduce send_to_device slice_tensors verify_operation
    """,
    "accel.utils.fsdp_utils": """
        FSDP_MODEL_NAME OPTIMIZER_NAME SAFE_WEIGHTS_NAME WEIGHTS_NAME disable_fsdp_ram_efficient_loading
        enable_fsdp_ram_efficient_loading ensure_weights_retied fsdp2_apply_ac fsdp2_canonicalize_names
        fsdp2_load_full_state_dict fsdp2_prepare_auto_wrap_policy fsdp2_prepare_model
        fsdp2_switch_optimizer_parameters get_fsdp2_grad_scaler get_logger get_module_children_bottom_up
        get_module_class_from_name get_non_persistent_buffers get_parameters_from_modules
        is_compiled_module is_peft_model is_torch_version load_fsdp_model load_fsdp_optimizer
        merge_fsdp_weights save save_fsdp_model save_fsdp_optimizer
    """,
    "accel.utils.other": """
        DistributedType FSDP_PYTORCH_VERSION PartialState TORCH_SAFE_GLOBALS check_os_kernel
        clean_state_dict_for_safetensors compile_regions compile_regions_deepspeed compile_regions_fsdp2
        convert_bytes convert_model extract_model_from_parallel get_free_port get_logger get_model_tp_size
        get_module_children_bottom_up get_pretty_name has_compiled_regions has_repeated_blocks
        id_tensor_storage is_compiled_module is_deepspeed_available is_numpy_available is_port_in_use
        is_repeated_blocks is_torch_distributed_available is_torch_version is_torch_xla_available
        is_weights_only_available load merge_dicts model_has_dtensor recursive_getattr save
        wait_for_everyone write_basic_config
    """,
    "accel.utils.random": """
        AcceleratorState CUDA_DISTRIBUTED_TYPES DistributedType RNGType is_hpu_available is_mlu_available
        is_musa_available is_neuron_available is_npu_available is_sdaa_available is_torch_xla_available
        is_xpu_available set_seed synchronize_rng_state synchronize_rng_states
    """,
    "accel.utils.imports": """
        USE_TORCH_XLA compare_versions deepspeed_required is_4bit_bnb_available is_8bit_bnb_available
        is_aim_available is_amdsmi_available is_bf16_available is_bitsandbytes_multi_backend_available
        is_bnb_available is_boto3_available is_clearml_available is_comet_ml_available is_cuda_available
        is_datasets_available is_deepspeed_available is_dvclive_available is_fp16_available
        is_fp8_available is_habana_gaudi1 is_hpu_available is_import_timer_available is_lomo_available
        is_matplotlib_available is_megatron_lm_available is_mlflow_available is_mlu_available
        is_mps_available is_msamp_available is_musa_available is_neuron_available is_npu_available
        is_numpy_available is_pandas_available is_peft_available is_pippy_available is_pynvml_available
        is_pytest_available is_rich_available is_rocm_available is_sagemaker_available
        is_schedulefree_available is_sdaa_available is_swanlab_available is_tensorboard_available
        is_timm_available is_torch_distributed_available is_torch_version is_torch_xla_available
        is_torchao_available is_torchdata_available is_torchdata_stateful_dataloader_available
        is_torchvision_available is_tqdm_available is_trackio_available is_transformer_engine_available
        is_transformer_engine_mxfp8_available is_transformers_available is_triton_available
        is_wandb_available is_weights_only_available is_xccl_available is_xpu_available
        parse_flag_from_env patch_environment str_to_bool torchao_required
    """,
    "accel.utils.versions": """
        STR_OPERATION_TO_FUNC compare_versions is_torch_version
    """,
    "accel.utils.bnb": """
        BnbQuantizationConfig dispatch_model find_tied_parameters get_balanced_memory
        get_keys_to_not_convert get_parameter_device get_quantized_model_device_map has_4bit_bnb_layers
        infer_auto_device_map init_empty_weights is_4bit_bnb_available is_8bit_bnb_available
        load_and_quantize_model load_checkpoint_in_model offload_weight quantize_and_offload_8bit
        replace_with_bnb_layers set_module_tensor_to_device
    """,
    "accel.utils.ao": """
        convert_model_to_fp8_ao filter_first_and_last_linear_layers filter_linear_layers
        find_first_last_linear_layers has_ao_layers is_torchao_available torchao_required
    """,
    "accel.utils.transformer_engine": """
        GatheredParameters apply_fp8_autowrap contextual_fp8_autocast convert_model
        has_transformer_engine_layers is_hpu_available is_transformer_engine_available
    """,
    "accel.utils.launch": """
        DEEPSPEED_MULTINODE_LAUNCHERS DistributedType DynamoBackend PrecisionType PrepareForLaunch
        SageMakerConfig SageMakerDistributedType compare_versions env_var_path_add get_free_port
        is_fp8_available is_hpu_available is_mlu_available is_musa_available is_neuron_available
        is_npu_available is_port_in_use is_sdaa_available is_torch_xla_available is_xpu_available
        merge_dicts prepare_deepspeed_cmd_env prepare_extend_env_parallelism_config prepare_multi_gpu_env
        prepare_sagemager_args_inputs prepare_simple_launcher_cmd_env prepare_tpu setup_fp8_env
        str_to_bool
    """,
    "accel.utils.tqdm": """
        PartialState is_tqdm_available tqdm
    """,
    "accel.commands.config": """
        config_command_parser default_command_parser get_config_parser load_config_from_file
        update_command_parser
    """,
    "accel.commands.config.default": """
        ClusterConfig SubcommandHelpFormatter default_command_parser default_config_command
        is_hpu_available is_mlu_available is_musa_available is_neuron_available is_npu_available
        is_sdaa_available is_xpu_available write_basic_config
    """,
    "accel.commands.launch": """
        ComputeEnvironment CustomArgumentParser CustomHelpFormatter DEEPSPEED_MULTINODE_LAUNCHERS
        DYNAMO_BACKENDS DistributedType PrepareForLaunch SageMakerConfig TORCH_DYNAMO_MODES
        check_cuda_p2p_ib_support clean_option convert_dict_to_env_variables deepspeed_launcher
        get_int_from_env is_bf16_available is_deepspeed_available is_hpu_available is_mlu_available
        is_musa_available is_neuron_available is_npu_available is_rich_available is_sagemaker_available
        is_sdaa_available is_torch_xla_available is_xpu_available launch_command launch_command_parser
        load_config_from_file multi_gpu_launcher patch_environment prepare_deepspeed_cmd_env
        prepare_multi_gpu_env prepare_sagemager_args_inputs prepare_simple_launcher_cmd_env prepare_tpu
        sagemaker_launcher simple_launcher str_to_bool tpu_launcher tpu_pod_launcher
    """,
    "accel.commands.estimate": """
        CustomArgumentParser add_timm_hub_prefix calculate_maximum_sizes check_has_model convert_bytes
        create_ascii_table create_empty_model estimate_command estimate_command_parser
        estimate_training_usage gather_data init_empty_weights is_timm_available is_transformers_available
        verify_on_hub
    """,
}
"""Module path: names that it offers."""


@functools.cache
def owners() -> dict[str, str]:
    """Return, by public name, the module that owns it."""
    return {name: place for place in reversed(PLACES) for name in importlib.import_module(place).__all__}


def face(module_name: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the module at one of the paths of the table."""
    return attach(
        module_name, {name: owners()[name] for name in FACES[module_name].split() if name in owners()}
    )
