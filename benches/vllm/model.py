#!/usr/bin/env python3
"""Makes the model that is measured with, where it is not there yet: random weights, 32 MiB of cache for a
prompt of 1,024 tokens.

    model.py DIRECTORY

A block of 32 tokens has 64 KiB in each layer, as one of 16 tokens has of Llama 3 8B in 16 bits, and a token
32 KiB in all; computing is a model's of a few million parameters.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from models import SHAPE, save
from transformers import LlamaConfig, LlamaForCausalLM

WIDE = {"num_hidden_layers": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}


def main() -> None:
    directory = Path(sys.argv[1], "wide")
    if not (directory / "config.json").exists():
        torch.manual_seed(0)
        save(LlamaForCausalLM(LlamaConfig(**(SHAPE | WIDE))), directory)


if __name__ == "__main__":
    main()
