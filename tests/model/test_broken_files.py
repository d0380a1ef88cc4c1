"""Whatever is wrong with the files of a model, they load, or one sentence says what is wrong."""

import json
import random
import shutil

import pytest
import tiny_checkpoint
import torch
from file_mutations import changed_bytes, changed_json, deeply_nested, encoded
from gguf import GGMLQuantizationType as Type
from gguf_helpers import FAMILIES, write_pair
from model_helpers import one_request

from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer

SMALL = dict(hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def used(source) -> None:
    """Load a model and its tokenizer and use both once. Raises AssertionError for any error that is no sentence."""
    try:
        model = Llama.load(source, "fp32", max_positions=64)
        model.forward(one_request(torch.tensor([1, 2, 3])), model.new_kv_cache(1))
        tokenizer = Tokenizer(source)
        ids = tokenizer.encode("Hello, <|im_end|> wörld")
        tokenizer.decode(ids)
        stream = tokenizer.detokenizer(prompt=ids)
        assert isinstance("".join(stream.add(i) for i in ids) + stream.finish(), str)
        if tokenizer.has_chat_template:
            tokenizer.chat([{"role": "user", "content": "hi"}])
    except (ValueError, OSError) as e:
        assert type(e) is ValueError or isinstance(e, OSError), repr(e)
        assert str(e) and "\n" not in str(e) and len(str(e)) < 1000, repr(e)


def folder_with_everything(folder):
    tiny_checkpoint.write(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [258, 256], "bos_token_id": 257}')
    special = {"bos_token": {"content": "<|im_start|>", "lstrip": False}, "unk_token": "<|unused|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    added = {"259": {"content": "<|more|>", "special": True, "normalized": False, "lstrip": False}}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"added_tokens_decoder": added, "extra_special_tokens": {"eot_token": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    more = {
        "rope_scaling": rope,
        "sliding_window": None,
        "layer_types": ["full_attention"] * 2,
        "attention_bias": False,
    }
    config = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def broken_folder(source, target, rng):
    """A copy of the folder with one file broken."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    (target / INDEX).unlink(missing_ok=True)
    name = rng.choice((*TEXTS, *TEXTS, WEIGHTS, INDEX))
    if name == WEIGHTS:
        data = (source / name).read_bytes()
        (target / name).write_bytes(changed_bytes(data, rng, 8 + int.from_bytes(data[:8], "little")))
        return
    if name == INDEX:
        where = {"model.embed_tokens.weight": WEIGHTS, "model.norm.weight": WEIGHTS}
        text = json.dumps({"metadata": {}, "weight_map": where})
    else:
        text = (source / name).read_text(encoding="utf-8")
    how = rng.random()
    if how < 0.65:
        data = changed_json(text, rng).encode(errors="surrogatepass")
    elif how < 0.9:
        data = changed_bytes(text.encode(), rng)
    elif how < 0.95:
        data = encoded(text, rng)
    else:
        data = deeply_nested(text, rng).encode()
    (target / name).write_bytes(data)


def check_folders(tmp_path, seeds):
    source = folder_with_everything(tmp_path / "whole")
    used(source)
    for seed in seeds:
        broken_folder(source, tmp_path / "broken", random.Random(seed))
        try:
            used(tmp_path / "broken")
        except BaseException as e:
            raise AssertionError(f"folder of seed {seed}: {e!r}") from e


def check_gguf_files(tmp_path, seeds):
    path, _ = write_pair(tmp_path, Type.F32, FAMILIES["llama, biases"] | SMALL)
    whole, bad = path.read_bytes(), tmp_path / "bad.gguf"
    used(path)
    header = whole.rindex(b"blk.0.") + 100
    for seed in seeds:
        bad.write_bytes(changed_bytes(whole, random.Random(seed), header))
        try:
            used(bad)
        except BaseException as e:
            raise AssertionError(f"file of seed {seed}: {e!r}") from e


def test_broken_folders_get_one_sentence(tmp_path):
    check_folders(tmp_path, range(300))


def test_broken_gguf_files_get_one_sentence(tmp_path):
    check_gguf_files(tmp_path, range(200))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_broken_folders_get_one_sentence(tmp_path):
    check_folders(tmp_path, range(1000, 13_000))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_broken_gguf_files_get_one_sentence(tmp_path):
    check_gguf_files(tmp_path, range(1000, 9000))
