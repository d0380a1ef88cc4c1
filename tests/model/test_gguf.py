import dataclasses

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_helpers import CONFIG, FAMILIES, logits, write_pair
from model_helpers import relative_error

from ssd import kernels
from ssd.model import hub
from ssd.model.config import LlamaConfig
from ssd.model.gguf.config import llama_config
from ssd.model.gguf.file import GGUFFile
from ssd.model.llama import Llama
from ssd.model.rope import llama3_frequencies
from ssd.model.tokenizer import Tokenizer

TYPES = (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.Q6_K)
CASES = [*((t, "llama") for t in TYPES), *((t, f) for t in (Type.F32, Type.Q4_1, Type.Q6_K) for f in FAMILIES)]


@pytest.mark.parametrize("kind,family", dict.fromkeys(CASES), ids=lambda x: getattr(x, "name", x))
def test_logits_of_the_same_weights_in_safetensors(tmp_path, kind, family):
    file, folder = write_pair(tmp_path, kind, FAMILIES[family])
    one, other = Llama.load(file, "fp32"), Llama.load(folder, "fp32")
    assert one.config == other.config
    assert torch.equal(logits(one), logits(other))


def test_rope_of_the_metadata(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 16
    changes = FAMILIES["llama"] | {"rope_scaling": scaling}
    config = LlamaConfig.from_dict(changes | CONFIG)
    plain = 1.0 / config.rope.theta ** (torch.arange(0, 64, 2) / 64)
    periods = (plain / llama3_frequencies(config, plain)).numpy()
    file, folder = write_pair(tmp_path / "a", Type.F32, changes, extra={"rope_freqs.weight": periods})
    assert max(relative_error(logits(Llama.load(file, "fp32")), logits(Llama.load(folder, "fp32")))) < 1e-5
    for name, meta in (
        ("linear", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("linear", {"rope.scale_linear": 4.0}),
        ("yarn", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}),
    ):
        scaling = {"rope_type": name, "factor": 4.0, "original_max_position_embeddings": 16}
        changes = FAMILIES["qwen2"] | {"rope_scaling": scaling}
        file, folder = write_pair(tmp_path / "b", Type.F32, changes, meta)
        one, other = llama_config(GGUFFile(file)), LlamaConfig.from_folder(folder)
        assert one.max_positions == other.max_positions
        assert torch.equal(logits(Llama.load(file, "fp32")), logits(Llama.load(folder, "fp32")))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1])
def test_four_bits_are_kept(tmp_path, kind):
    """Weights are packed as stored, mixed types lose nothing, and this is the default for such a file."""
    types = {"lm_head": Type.Q8_0, "embed_tokens": Type.Q6_K, "k_proj": Type.Q4_0, "down_proj": Type.Q6_K}
    file, folder = write_pair(tmp_path, kind, FAMILIES["llama"], types=types)
    model, plain = Llama.load(file, None), Llama.load(folder, "fp32")
    assert model.dtype == "q4" and Llama.load(folder, None).dtype == "bf16"
    layer = model.weights.layers[0]
    format = kind.name.lower()
    sizes = {"q4_0": 288, "q4_1": 320, "q8_0": 544}
    got = [t.shape[2] for t in (layer.qkv, layer.o, layer.gate_up, layer.down, model.weights.lm_head)]
    assert got == [sizes[f] for f in (format, format, format, "q8_0", "q8_0")]
    stored = torch.from_numpy(GGUFFile(file).tensors["blk.0.attn_output.weight"].data.copy())
    blocks = stored.unflatten(1, (-1, 18 if kind == Type.Q4_0 else 20))
    assert torch.equal(layer.o, kernels.pack_linear(blocks, format))
    error, _ = relative_error(logits(model), logits(plain))
    assert 0 < error < 0.03
    beside = Llama.load(folder, "q4")  # the file inside the folder
    assert torch.equal(logits(beside), logits(model))


def test_matrices_of_both_kinds_become_one(tmp_path):
    file, folder = write_pair(tmp_path, Type.Q4_1, FAMILIES["llama"], types={"k_proj": Type.Q4_0, "up_proj": Type.Q4_0})
    model = Llama.load(file, "q4")
    x = torch.eye(256) * 127  # quantised exactly
    got = kernels.linear(x, model.weights.layers[0].qkv, 512).T / 127
    wanted = Llama.load(folder, "fp32").weights.layers[0].qkv.transpose(1, 2).flatten(0, 1)[:512]
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_k_quants_of_four_bits_have_the_same_numbers(tmp_path):
    """Scales are rounded to float16."""
    file, folder = write_pair(tmp_path, Type.Q4_K, FAMILIES["qwen2"], types={"v_proj": Type.Q6_K})
    model, plain = Llama.load(file, None), Llama.load(folder, "fp32")
    layer = model.weights.layers[0]
    assert model.dtype == "q4" and (layer.o.shape[2], layer.qkv.shape[2]) == (320, 544)
    got = kernels.linear(torch.eye(256) * 127, layer.o, 256).T / 127
    wanted = plain.weights.layers[0].o.transpose(1, 2).flatten(0, 1)
    assert (got - wanted).abs().max() < 1e-3 * wanted.abs().max()
    assert relative_error(logits(model), logits(plain))[0] < 0.03


def test_weights_of_a_folder_in_four_bits(tmp_path):
    """Weights are rounded to the blocks to which the gguf package rounds them."""
    changes = FAMILIES["qwen2"]
    file, folder = write_pair(tmp_path / "floats", Type.F32, changes)
    types = {"lm_head": Type.Q8_0, "embed_tokens": Type.F32}
    rounded, _ = write_pair(tmp_path / "blocks", Type.Q4_1, changes, types=types)
    want = logits(Llama.load(rounded, "q4"))
    assert torch.equal(logits(Llama.load(folder, "q4")), want) and torch.equal(logits(Llama.load(file, "q4")), want)
    assert Llama.load(file, None).dtype == "bf16"


def test_four_bits_are_of_the_cpu(tmp_path):
    with pytest.raises(ValueError, match="dtype: q4 runs on the CPU only; use bf16, int8 or fp32 on meta"):
        Llama.load(tmp_path, "q4", device="meta")


def test_whole_way_to_an_answer(tmp_path):
    from ssd import LLM, SamplingParams

    file, _ = write_pair(tmp_path, Type.Q4_0, FAMILIES["llama"])
    assert hub.resolve(file) == file
    outputs = {}
    for mode, draft in (("ar", None), ("sd", "ngram"), ("sd", str(file))):
        llm = LLM(str(file), mode=mode, draft=draft, threads=1)
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        outputs[mode, draft] = llm.generate([[3, 50, 60], [3, 4]], params)
        assert llm.describe()["dtype"] == "q4"
        llm.close()
    tokens = [[o.token_ids for o in output] for output in outputs.values()]
    assert tokens[0] == tokens[1] == tokens[2]


def broken(path, out, change):
    """A copy of a GGUF file with other metadata or tensors."""
    reader = gguf.GGUFReader(path)
    meta = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    values = {k: f.contents() for k, f in meta.items()}
    kinds = {k: (f.types[0], f.types[-1] if len(f.types) > 1 else None) for k, f in meta.items()}
    tensors = {t.name: (np.array(t.data), t.tensor_type) for t in reader.tensors}
    change(values, tensors)
    writer = gguf.GGUFWriter(out, values.pop("general.architecture", "llama"))
    for key, value in values.items():
        kind, element = kinds.get(key, (gguf.GGUFValueType.get_type(value), None))
        if isinstance(value, list) and kind != gguf.GGUFValueType.ARRAY:
            kind, element = gguf.GGUFValueType.ARRAY, kind
        writer.add_key_value(key, value, kind, element)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "message,change",
    [
        (
            "architecture 'gemma' is not supported: wanted llama",
            lambda m, t: m.update({"general.architecture": "gemma"}),
        ),
        ("llama.block_count is missing in its metadata", lambda m, t: m.pop("llama.block_count")),
        ("llama.context_length is missing", lambda m, t: m.pop("llama.context_length")),
        ("mixture-of-experts models are not supported", lambda m, t: m.update({"llama.expert_count": 8})),
        ("RoPE scaling 'longrope' is not", lambda m, t: m.update({"llama.rope.scaling.type": "longrope"})),
        ("a sliding window is not supported", lambda m, t: m.update({"llama.attention.sliding_window": 8})),
        ("rope.dimension_count 32 is not", lambda m, t: m.update({"llama.rope.dimension_count": 32})),
        ("head_count_kv differs between", lambda m, t: m.update({"llama.attention.head_count_kv": [1, 2]})),
        ("is one of 3 parts: merge them", lambda m, t: m.update({"split.count": 3})),
        ("tensor token_embd.weight is missing", lambda m, t: t.pop("token_embd.weight")),
        ("tensor model.layers.0.mlp.up_proj.weight is missing in", lambda m, t: t.pop("blk.0.ffn_up.weight")),
        (
            "tensor blk.0.attn_sinks.weight in .* has no place",
            lambda m, t: t.update({"blk.0.attn_sinks.weight": VECTOR}),
        ),
        (r"tensor output_norm.weight in .*: got shape \[4\]", lambda m, t: t.update({"output_norm.weight": VECTOR})),
        ("rope_freqs.weight holds 4 factors, wanted 32", lambda m, t: t.update({"rope_freqs.weight": VECTOR})),
        ("tensor blk.0.ffn_up.weight in .*: type Q8_1 is not", lambda m, t: t.update({"blk.0.ffn_up.weight": UNREAD})),
        ("holds NaN or infinite values", lambda m, t: t["blk.0.ffn_up.weight"][0].view(np.float16).fill(np.inf)),
    ],
)
def test_files_that_are_refused(tmp_path, message, change):
    path, _ = write_pair(tmp_path, Type.Q4_1, FAMILIES["llama"])
    broken(path, tmp_path / "bad.gguf", change)
    for dtype in ("fp32", "q4"):
        with pytest.raises(ValueError, match=message) as e:
            Llama.load(tmp_path / "bad.gguf", dtype)
        assert "\n" not in str(e.value) and "bad.gguf" in str(e.value)


VECTOR = (np.ones(4, np.float32), Type.F32)
UNREAD = (np.zeros((256, 256 // 32 * gguf.GGML_QUANT_SIZES[Type.Q8_1][1]), np.uint8), Type.Q8_1)


def test_files_that_are_cut_or_of_another_kind(tmp_path):
    path, _ = write_pair(tmp_path, Type.F16, FAMILIES["llama"])
    whole, bad = path.read_bytes(), tmp_path / "bad.gguf"
    for size in (4, 20, 100, 1000, len(whole) // 2, len(whole) - 600):
        bad.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="bad.gguf is truncated") as e:
            Llama.load(bad, "fp32")
        assert "\n" not in str(e.value)
    for content, message in (
        (b"", "is no GGUF file"),
        (b"GGML" + whole[4:], "is no GGUF file"),
        (whole[:4] + b"\x01" + whole[5:], "version 1 of GGUF is not supported"),
        (whole.replace(b"general.architecture", b"general.architectur\xff", 1), "corrupt header"),
    ):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Tokenizer(bad)
    with pytest.raises(ValueError, match="no such file: .*none.gguf"):
        hub.resolve(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="no such file: a/none.gguf"):
        hub.resolve("a/none.gguf")


def test_config_is_frozen_and_its_text_tells_files_apart(tmp_path):
    """What is learned about a model is stored by its configuration."""
    file, _ = write_pair(tmp_path, Type.F32, FAMILIES["llama"])
    config = llama_config(GGUFFile(file))
    longer = dataclasses.replace(config, rope=dataclasses.replace(config.rope, period_factors=(2.0,) * 32))
    assert str(config) != str(longer) and hash(config)
