"""A Llama (Touvron et al., arXiv 2302.13971) over a paged KV cache, composed of the operators of ssd."""

from functools import partial
from pathlib import Path

import torch

from .. import kernels
from ..kernels.tree_attention import flash
from ..shared_options import check_prompt_attention
from .batch import Batch
from .config import LlamaConfig
from .kv_cache import KVCache
from .packed_weights import kept_weights
from .rope import rope_tables
from .source import checked_dtype, open_model, packing
from .weights import BLOCK, LayerWeights, load_weights


class Llama:
    """A model with weights packed for `linear`. Use Llama.load to make one.

    A row of a batch gets the same logits, bit for bit, whatever other rows come with it. The KV cache is float32 for
    fp32, else bfloat16. Activations are float32 on the CPU; on CUDA the residual stream is float32, and inputs of
    products have the cache's dtype.
    """

    hidden_norm = None  # float32 [H], in a feature draft
    flash_attn = None  # flash_attn_varlen_func, where prompts use it

    def __init__(self, config: LlamaConfig, weights, cos: torch.Tensor, sin: torch.Tensor, dtype: str):
        self.vocab = config.vocab_size  # outputs of lm_head
        if missing := config.padded_head_dim // 2 - cos.shape[1]:
            cos, sin = (torch.nn.functional.pad(table, (0, missing)) for table in (cos, sin))
        self.config, self.weights, self.cos, self.sin, self.dtype = config, weights, cos, sin, dtype
        self.scale = config.head_dim**-0.5
        nothing = torch.empty(0)
        self.flat = [nothing if t is None else t for layer in weights.layers for t in vars(layer).values()]

    @classmethod
    def load(
        cls,
        source: str | Path,
        dtype: str | None = "bf16",
        max_positions: int | None = None,
        device: str | torch.device = "cpu",
        prompt_attention: str = "tree",
    ) -> "Llama":
        """The model of a folder with config.json and *.safetensors, or of a GGUF file.

        dtype: the format of the weights in memory, "bf16", "fp32", "int8" or "q4" (four bits in blocks, CPU only);
        None is q4 for a GGUF file of four bits, else bf16. max_positions: longest sequence in tokens (default: what
        the checkpoint allows). device: where weights, tables and KV caches lie. prompt_attention: "tree", or "flash",
        the package flash-attn for prompts of more than 64 rows a pass, on CUDA; the KV then depends on how prompts were
        cut into chunks, and so may the answer. Raises ValueError (one sentence) on an unfit dtype, folder,
        configuration or checkpoint, and where flash-attn cannot run.
        """
        device = torch.device(device)
        check_prompt_attention(prompt_attention)
        dtype = checked_dtype(source, dtype, device)
        if prompt_attention == "flash" and dtype == "fp32":
            raise ValueError("prompt_attention: flash needs dtype bf16 or int8, whose KV cache has 16 bits; got fp32")
        call = flash.function(device) if prompt_attention == "flash" else None
        config, checkpoint = open_model(source, dtype, device)
        embedding_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
        pack, pack_head = packing(dtype)
        norm_dtype = torch.float32 if device.type == "cpu" else embedding_dtype
        load = partial(
            load_weights, config, checkpoint, pack, embedding_dtype, pack_head=pack_head, norm_dtype=norm_dtype
        )
        weights = kept_weights(checkpoint, config, dtype, load)
        checkpoint.check_values()
        model = cls(config, weights, *(t.to(device) for t in rope_tables(config, max_positions)), dtype)
        model.flash_attn = call
        return model

    @property
    def device(self) -> torch.device:
        return self.cos.device

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the model."""
        w = self.weights
        return [t for t in (*self.flat, w.embedding, w.norm, w.lm_head, self.cos, self.sin) if t.numel()]

    @property
    def weight_bytes(self) -> int:
        """The bytes of weights that a pass of a few rows reads."""
        return sum(t.nbytes for t in (*self.flat, self.weights.norm, self.weights.lm_head))

    def new_kv_cache(self, num_pages: int, page_size: int = 16) -> KVCache:
        """A cache for this model: k, v [layers, num_pages, page_size, kv heads, padded_head_dim]."""
        return self._kv_cache(num_pages, page_size, self.device)

    def page_bytes(self, page_size: int = 16) -> int:
        """The bytes of a page of such a cache."""
        return self._kv_cache(1, page_size, torch.device("meta")).nbytes

    def _kv_cache(self, num_pages: int, page_size: int, device: torch.device) -> KVCache:
        c, kv_dtype = self.config, torch.float32 if self.dtype == "fp32" else torch.bfloat16
        return KVCache(c.num_layers, num_pages, page_size, c.num_kv_heads, c.padded_head_dim, kv_dtype, device)

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        """Logits float32 [len(batch.logit_rows), vocab]; K and V of the rows are stored at batch.slots."""
        return self.forward_features(batch, kv)[0]

    def forward_features(
        self, batch: Batch, kv: KVCache, layers: tuple[int, ...] = (), hidden: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of `forward`, and features float32 [R, len(layers) H]: the residual stream after each of layers.

        hidden: float32 [R, H], the input of the first layer of a feature draft.
        """
        if self.flash_attn and batch.mask is None and hidden is None:
            tables = (batch.page_table, batch.prefix_lens, batch.row_offsets)
            prompts = flash.prompts(self.flash_attn, *tables, len(batch.ids), kv.page_size)
            if prompts:
                return self._composed(batch, kv, layers, prompts)
        c, w = self.config, self.weights
        rows = (batch.ids, batch.positions, batch.slots, batch.row_offsets, batch.prefix_lens, batch.page_table)
        model = (w.embedding, self.flat, w.norm, w.lm_head, self.cos, self.sin)
        sizes = (c.num_heads, c.intermediate_size, c.rms_norm_eps, self.scale)
        extra = (self.vocab, hidden, self.hidden_norm if hidden is not None else None, layers)
        return kernels.llama_forward(*rows, batch.mask, batch.logit_rows, kv.k, kv.v, *model, *sizes, *extra)

    def forward_composed(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        """The logits of `forward`, computed operator by operator: the same bits."""
        return self._composed(batch, kv)[0]

    def _composed(self, batch: Batch, kv: KVCache, layers=(), prompts: flash.Prompts | None = None):
        c, w = self.config, self.weights
        x = kernels.embedding(batch.ids, w.embedding)  # [R, H]
        stream = {0: x}
        for i, (layer, k, v) in enumerate(zip(w.layers, kv.k, kv.v, strict=True), 1):
            x = self.attention(layer, x, batch, k, v, prompts)
            x = self.mlp(layer, x)
            if i in layers:
                stream[i] = x
        features = torch.cat([stream[n] for n in layers], 1) if layers else x.new_empty(len(x), 0)
        x = kernels.rms_norm(x[batch.logit_rows], w.norm, c.rms_norm_eps)
        return kernels.linear(x, w.lm_head, self.vocab), features

    def attention(self, layer: LayerWeights, x: torch.Tensor, batch: Batch, k, v, prompts=None) -> torch.Tensor:
        c = self.config
        normed = kernels.rms_norm(x, layer.attention_norm, c.rms_norm_eps)
        heads = c.num_heads + 2 * c.num_kv_heads
        qkv = kernels.linear(normed, layer.qkv, heads * c.padded_head_dim, layer.qkv_bias)
        norms = (layer.q_norm, layer.k_norm, c.rms_norm_eps)
        q = kernels.rope_append(qkv, self.cos, self.sin, batch.positions, batch.slots, k, v, *norms)  # [R, Hq, D]
        if prompts:
            out = prompts.attend(q, k, v, self.scale)
        else:
            rows = (batch.page_table, batch.prefix_lens, batch.row_offsets, batch.mask)
            out, _ = kernels.tree_attention(q, k, v, *rows, scale=self.scale)
        return kernels.linear(out.flatten(1), layer.o, c.hidden_size, layer.o_bias, x)

    def mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        c = self.config
        normed = kernels.rms_norm(x, layer.mlp_norm, c.rms_norm_eps)
        n = 2 * -(-c.intermediate_size // BLOCK) * BLOCK
        inner = kernels.linear_swiglu(normed, layer.gate_up, n, layer.gate_up_bias)  # [R, n / 2]
        return kernels.linear(inner, layer.down, c.hidden_size, layer.down_bias, x)
