#!/usr/bin/env python3
"""Makes tiny models with random weights, the same on every machine: a few megabytes each, nothing to
download.

    models.py DIRECTORY

`full` has one group of KV cache; `window` has two, since half of its layers look back 64 tokens only.
Its weights are large enough that greedy answers depend on the whole prompt: a block that went astray shows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.15,
    "torch_dtype": "float32",
}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for every byte: no training, no download."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    symbols = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    )


def save(model: Any, directory: Path) -> None:
    model.float().save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    print(f"made {directory}: {sum(p.numel() for p in model.parameters())} parameters")


def main() -> None:
    home = Path(sys.argv[1])
    torch.manual_seed(0)
    save(LlamaForCausalLM(LlamaConfig(**SHAPE)), home / "full")
    torch.manual_seed(0)
    layers = ["sliding_attention", "full_attention"] * 2
    window = Gemma3TextConfig(**SHAPE, sliding_window=64, layer_types=layers, query_pre_attn_scalar=32)
    save(Gemma3ForCausalLM(window), home / "window")


if __name__ == "__main__":
    main()
