"""Spotlight: RL post-training of diffusion transformers on spot GPUs (the reserved node's side)."""

__version__ = "0.1.0"
