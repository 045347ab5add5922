"""What a Hugging Face Trainer may do that `ElasticTrainer`, which replaces the loop over an epoch, does not."""

from __future__ import annotations

import inspect

from transformers import Trainer

USED = {"epoch", "steps_in_epoch", "trial", "ignore_keys_for_eval", "start_time"}
"""Arguments of Trainer._run_epoch."""
NOT_CALLED = ("get_train_dataloader", "_get_train_sampler", "get_batch_samples", "_run_epoch")
"""Methods of Trainer that subclasses would override in vain."""


def refusal(trainer: Trainer) -> str | None:
    """Why `trainer`, an ElasticTrainer, cannot train. None: it can."""
    if not hasattr(Trainer, "_run_epoch") or not inspect.signature(Trainer._run_epoch).parameters.keys() >= USED:
        return "this version of transformers has another training loop"
    args = trainer.args
    found = {
        "train_dataset needs a length": not hasattr(trainer.train_dataset, "__len__"),
        "gradient_accumulation_steps must be 1: the number of micro-batches follows from global_batch_size and "
        "per_device_train_batch_size": args.gradient_accumulation_steps != 1,
        "auto_find_batch_size is not supported": args.auto_find_batch_size,
        "train_sampling_strategy must be random or sequential": args.train_sampling_strategy
        not in ("random", "sequential"),
        "include_num_input_tokens_seen is not supported": args.include_num_input_tokens_seen != "no",
        "average_tokens_across_devices must be True": not args.average_tokens_across_devices,
        "eval_on_start is not supported": args.eval_on_start,
        "loss_is_scaled_for_ga must not be True": trainer.loss_is_scaled_for_ga is True,
        "DeepSpeed, FSDP and parallelism within a model are not supported": trainer.is_deepspeed_enabled
        or trainer.is_fsdp_enabled
        or trainer.is_model_parallel
        or trainer.is_distributed_loading_by_transformers,
        "one process uses several GPUs: start one for each": args.n_gpu > 1,
        **{f"{name}() is overridden, and not called": _is_overridden(trainer, name) for name in NOT_CALLED},
    }
    return next((problem for problem, is_found in found.items() if is_found), None)


def _is_overridden(trainer: Trainer, name: str) -> bool:
    return any(
        name in vars(each)
        for each in type(trainer).__mro__
        if each is not Trainer and not each.__module__.startswith(__package__)
    )
