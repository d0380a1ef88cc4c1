"""Turns a GGUF file into a model folder: config.json, model.safetensors (float32), tokenizer files."""

import json
from pathlib import Path

from ..safetensors_file import write_safetensors
from .config import llama_config, read_config
from .file import GGUFFile
from .tokenizer import read_tokenizer
from .weights import GGUFCheckpoint


def import_gguf(path: str | Path, folder: str | Path, progress=lambda tensors: tensors) -> None:
    """Write the files of the folder. progress: wraps the list of tensors to be converted, for a progress bar.

    Raises ValueError that names the file when its model or tokenizer is not supported.
    """
    folder, file = Path(folder), GGUFFile(path)
    config, checkpoint = read_config(file), GGUFCheckpoint(file, llama_config(file))
    tokenizer, special, template, _ = read_tokenizer(file)
    shapes = {name: tuple(checkpoint.shape(stored)) for name, (_, stored) in checkpoint.where.items()}
    rows = progress(list(shapes.items()))
    write_safetensors(folder / "model.safetensors", shapes, (checkpoint.tensor(*row).numpy() for row in rows))
    tokenizer.save(str(folder / "tokenizer.json"))
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", described | special),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
