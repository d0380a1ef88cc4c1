"""A draft: a small Llama with the target's vocabulary, or a feature draft that also reads the target's hidden states
(EAGLE-3, Li et al., arXiv 2503.01840). A draft may have a trimmed output vocabulary, share the target's embedding, and
have a vocabulary with less padding."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from .. import kernels
from .checkpoint import Checkpoint
from .config import LlamaConfig
from .llama import Llama
from .packed_weights import kept_weights
from .rope import rope_tables
from .source import checked_dtype, open_model, packing, ring_to
from .values import read_json
from .weights import load_weights, tensor_shapes

EAGLE3 = "LlamaForCausalLMEagle3"
PADDING = 1024  # vocabularies of models with one tokenizer may differ by so many rows
RENAMED = {"midlayer.": "model.layers.0.", "norm.": "model.norm.", "embed_tokens.": "model.embed_tokens."}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def llama_name(name: str) -> str:
    """The name that a tensor of a published EAGLE-3 checkpoint has in a Llama."""
    return next((new + name[len(old) :] for old, new in RENAMED.items() if name.startswith(old)), name)


class Draft(Llama):
    """A Llama that proposes tokens of a target.

    ids: int64 [vocab], the target's id of each output, or None where they are the same. feature_layers: layers of the
    target whose features the draft reads, empty for an independent draft. The row of token j reads the hidden state of
    token j - 1 and has its K and V at index j - shift: a published EAGLE-3 has no row for the first token, a draft made
    by ssd.distill has one, with a hidden state of 0. folder: where it was loaded from.
    """

    ids = fc = None
    feature_layers, feature_width, shift = (), 0, 0

    @classmethod
    def load(
        cls, folder: str | Path, target: Llama, dtype: str = "bf16", device: str | torch.device | None = None
    ) -> "Draft":
        """The draft of a folder for a target, on a device (default: the target's).

        Raises ValueError (one sentence) as Llama.load does, and where draft and target do not fit together.
        """
        folder, wide = Path(folder), target.config
        device = target.device if device is None else torch.device(device)
        dtype = checked_dtype(folder, dtype, device)
        raw = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        eagle = raw.get("architectures") == [EAGLE3]
        if eagle:
            config = LlamaConfig.from_dict(raw | {"architectures": None, "model_type": "llama"})
            checkpoint = Checkpoint(folder, llama_name, ring_to(device))
        else:
            config, checkpoint = open_model(folder, dtype, device)
        fewer = wide.vocab_size - config.vocab_size
        if not 0 <= fewer <= PADDING:
            raise ValueError(
                f"draft {folder} has a vocabulary of {config.vocab_size} tokens, wanted that of the target, "
                f"{wide.vocab_size}, or a little less of its padding"
            )
        layers = feature_layers(folder, raw, wide.num_layers, eagle)
        outputs = raw.get("draft_vocab_size") or config.vocab_size
        shapes = draft_shapes(config, checkpoint, outputs, bool(layers), len(layers) * wide.hidden_size)
        embedding_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
        embedding = None
        if EMBEDDING not in checkpoint.where:
            if config.hidden_size != wide.hidden_size:
                raise ValueError(
                    f"draft {folder} has no {EMBEDDING} and a hidden size of {config.hidden_size}, wanted "
                    f"{wide.hidden_size} to share the target's embedding"
                )
            embedding = target.weights.embedding.to(device, embedding_dtype)
            shapes.pop(EMBEDDING)

        pack, pack_head = packing(dtype)
        norm_dtype = torch.float32 if device.type == "cpu" else embedding_dtype
        load = partial(
            load_weights, config, checkpoint, pack, embedding_dtype, shapes, embedding, pack_head, norm_dtype
        )
        weights = kept_weights(checkpoint, config, dtype, load)  # no draft in a GGUF file reads features
        if embedding is None and fewer:
            weights.embedding = torch.nn.functional.pad(weights.embedding, (0, 0, 0, fewer))
        config = replace(config, vocab_size=wide.vocab_size)
        positions = min(len(target.cos), config.max_positions)  # the draft proposes nothing beyond its own context
        draft = cls(config, weights, *(t.to(device) for t in rope_tables(config, positions)), dtype)
        draft.folder = folder
        draft.vocab, draft.feature_layers, draft.shift = outputs, layers, int(eagle)
        draft.feature_width = len(layers) * wide.hidden_size
        draft.ids = read_ids(checkpoint, outputs, wide.vocab_size - fewer, eagle)
        if draft.ids is None and fewer:
            draft.ids = torch.arange(outputs)
        if draft.ids is not None:
            draft.ids = draft.ids.to(device)
        draft.fc = None
        if layers:
            draft.hidden_norm = checkpoint.tensor(HIDDEN_NORM, shapes[HIDDEN_NORM]).to(norm_dtype)
            if FC in shapes:
                draft.fc = pack(checkpoint.tensor(FC, shapes[FC]).float().contiguous())
        checkpoint.check_values()
        return draft

    def tensors(self) -> list[torch.Tensor]:
        return super().tensors() + [t for t in (self.ids, self.fc, self.hidden_norm) if t is not None]

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, H] from features of the target [n, len(feature_layers) Ht]."""
        return features if self.fc is None else kernels.linear(features, self.fc, self.config.hidden_size)


FC, HIDDEN_NORM = "fc.weight", "model.layers.0.hidden_norm.weight"


def feature_layers(folder: Path, raw: dict, depth: int, eagle: bool) -> tuple[int, ...]:
    """The layers of the target that a draft reads, each from 0 (embeddings) to depth."""
    layers = raw.get("feature_layers")
    if layers is None and eagle:
        layers = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or [2, depth // 2, depth - 3]
    layers = [] if layers is None else layers
    if not isinstance(layers, list) or not all(type(n) is int and 0 <= n <= depth for n in layers):
        raise ValueError(f"feature_layers in {folder / 'config.json'}: got {layers!r}, wanted layers from 0 to {depth}")
    return tuple(layers)


def draft_shapes(config: LlamaConfig, checkpoint: Checkpoint, outputs: int, features: bool, width: int) -> dict:
    """Name and shape of every tensor of a draft. width: of the features that it reads."""
    shapes, hidden = tensor_shapes(config), config.hidden_size
    if not config.tie_word_embeddings:
        shapes[HEAD] = (outputs, hidden)
    elif outputs != config.vocab_size:
        raise ValueError(f"draft_vocab_size in {checkpoint.folder}: needs tie_word_embeddings to be false")
    if features:
        for x in "qkv":
            name = f"model.layers.0.self_attn.{x}_proj.weight"
            shapes[name] = (shapes[name][0], 2 * hidden)
        shapes[HIDDEN_NORM] = (hidden,)
        if FC in checkpoint.where or width != hidden:
            shapes[FC] = (hidden, width)
    return shapes


def read_ids(checkpoint: Checkpoint, outputs: int, vocab: int, offsets: bool) -> torch.Tensor | None:
    """The target's id of each output. offsets: stored as differences from the output's number, as in EAGLE-3."""
    if "d2t" not in checkpoint.where:
        if outputs != vocab:
            raise ValueError(f"tensor d2t is missing in {checkpoint.folder}: {outputs} outputs are not {vocab} tokens")
        return None
    checkpoint.check("d2t", (outputs,))
    file, stored = checkpoint.where["d2t"]
    ids = file.read(stored, {"I64": torch.int64, "I32": torch.int32}).long()
    ids = ids + torch.arange(outputs) if offsets else ids.clone()
    if ids.min() < 0 or ids.max() >= vocab or len(ids.unique()) < outputs:
        raise ValueError(f"tensor d2t in {file.path}: wanted different token ids from 0 to {vocab - 1}")
    return ids
