"""Converts a draft to a Hugging Face model for mode assisted: `python -m bench.peers.hf_draft DRAFT OUT`.

DRAFT is a folder that ssd.distill wrote without --feature-layers, since no other system gives a draft the hidden states
of its target. Tokens that a trimmed draft cannot propose get rows of zeros, that is a logit of 0, far below those of
its most probable tokens.
"""

import argparse
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from ssd.cli.command import guarded
from ssd.distill.config import save_json
from ssd.model import resolve
from ssd.model.checkpoint import Checkpoint
from ssd.model.values import read_json

EMBEDDING = "model.embed_tokens.weight"


def export(draft: Path, target: Path, out: Path) -> None:
    """Writes the model to the folder `out`. Raises ValueError for a feature draft."""
    config = read_json(draft / "config.json")
    tensors = load_file(draft / "model.safetensors")
    vocab = config["vocab_size"]
    hidden = config["hidden_size"]
    if config.get("feature_layers"):
        raise ValueError(f"{draft}: got a feature draft, wanted one that was made without --feature-layers")
    if "d2t" in tensors:
        rows = tensors.pop("d2t")
        head = tensors["lm_head.weight"]
        tensors["lm_head.weight"] = head.new_zeros(vocab, hidden).index_copy_(0, rows, head)
    if EMBEDDING not in tensors:
        tensors[EMBEDDING] = Checkpoint(target).tensor(EMBEDDING, (vocab, hidden))
    out.mkdir(parents=True, exist_ok=True)
    save_file({n: t.bfloat16().contiguous() for n, t in tensors.items()}, out / "model.safetensors", {"format": "pt"})
    config.pop("draft_vocab_size", None)
    save_json(out / "config.json", config)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (target / file).exists():
            shutil.copy(target / file, out / file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path, help="folder of the draft")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--target", help="folder or id of the target (the default target)")
    args = parser.parse_args()
    try:
        export(args.draft, Path(resolve(args.target)), args.out)
    except (ValueError, OSError) as e:
        print(e, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
