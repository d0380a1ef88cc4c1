"""Draft checkpoints in the form that the runtime loads: config.json and model.safetensors."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ssd.model.config import LlamaConfig
from ssd.model.rope import rope_tables

from .config import DraftConfig, save_json
from .model import Draft, shapes


def save_draft(folder: Path, draft: Draft, dtype=torch.bfloat16) -> None:
    """Writes a draft, matrices in `dtype` and norms in float32; d2t only if it is trimmed, the embedding only if it is
    narrower than the target."""
    c = draft.config
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: w.detach().cpu() for n, w in draft.weights().items()}
    if c.has_fc:
        tensors["fc.weight"] = tensors["fc.weight"] / draft.feature_scale.cpu()
    tensors = {n: w.to(dtype if w.dim() == 2 else torch.float32).contiguous() for n, w in tensors.items()}
    if c.draft_vocab_size < c.vocab_size:
        tensors["d2t"] = draft.d2t.cpu()
    if c.hidden_size != c.target_hidden_size:
        tensors["model.embed_tokens.weight"] = draft.embedding.cpu().to(dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_json(folder / "config.json", c.to_dict())


def load_draft(folder: Path, embedding: torch.Tensor, dtype=torch.bfloat16, device="cpu", scale=None) -> Draft:
    """The Draft in a folder that save_draft wrote. embedding: the target's; scale: feature_scale of Draft.

    Raises ValueError if a tensor is missing or has another shape.
    """
    c = DraftConfig.from_folder(folder)
    tensors = load_file(Path(folder) / "model.safetensors")
    for name, shape in shapes(c).items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            got = list(tensors[name].shape) if name in tensors else None
            raise ValueError(f"tensor {name} in {folder}: got {got}, wanted {list(shape)}")
    d2t = tensors.get("d2t", torch.arange(c.vocab_size))
    embedding = tensors.get("model.embed_tokens.weight", embedding).bfloat16()
    cos, sin = rope_tables(LlamaConfig.from_folder(folder))
    return Draft(c, tensors, d2t, embedding, cos, sin, dtype, scale).to(device)
