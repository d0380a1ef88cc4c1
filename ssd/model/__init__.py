"""Llama-class models: configuration, weights, forward pass, tokenizer, and where they come from."""

from .batch import Batch
from .config import LlamaConfig
from .hub import resolve
from .kv_cache import BlockAllocator, KVCache
from .llama import Llama
from .tokenizer import Tokenizer

__all__ = ["Batch", "BlockAllocator", "KVCache", "Llama", "LlamaConfig", "Tokenizer", "resolve"]
