"""State that is sharded over the ranks (FSDP2, DTensor): saved and restored by all ranks together.

- `ranks` lets all ranks share one answer, or one error
- `contents` is the state as torch.distributed.checkpoint (DCP) sees it
- `storage` is a directory of sharded checkpoints
- `save_load` is what scripts use

See docs/design/0024-sharded-state.md.
"""
