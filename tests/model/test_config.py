import json

import pytest
import torch

from ssd.model.config import LlamaConfig, Rope
from ssd.model.rope import rope_tables

BASE = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=10,
    hidden_size=256,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    max_position_embeddings=128,
)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SCALINGS = {
    "none": None,
    "default": {"rope_type": "default"},
    "linear": {"type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 3.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, all": dict(rope_type="yarn", factor=8.0, beta_fast=20.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=1.5),
    "yarn, not rounded": {"rope_type": "yarn", "factor": 2.5, "attention_factor": 1.5, "truncate": False},
}


def test_defaults_and_derived_fields():
    c = LlamaConfig.from_dict(BASE)
    assert (c.head_dim, c.num_kv_heads, c.max_positions, c.rms_norm_eps) == (64, 4, 128, 1e-6)
    assert (c.tie_word_embeddings, c.attention_bias, c.mlp_bias, c.eos_token_ids) == (False, False, False, ())
    assert LlamaConfig.from_dict(BASE | {"head_dim": 80, "hidden_size": 250}).head_dim == 80
    assert LlamaConfig.from_dict(BASE | {"num_key_value_heads": 1}).num_kv_heads == 1


def test_eos_ids_are_those_of_both_files():
    assert LlamaConfig.from_dict(BASE | {"eos_token_id": 2}).eos_token_ids == (2,)
    assert LlamaConfig.from_dict(BASE | {"eos_token_id": 2}, {"eos_token_id": [3, 2]}).eos_token_ids == (2, 3)
    assert LlamaConfig.from_dict(BASE | {"eos_token_id": [5, 6]}, {"temperature": 1.0}).eos_token_ids == (5, 6)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_old_and_new_spelling_agree(scaling):
    old = LlamaConfig.from_dict(BASE | {"rope_theta": 5e5, "rope_scaling": scaling})
    new = LlamaConfig.from_dict(BASE | {"rope_parameters": {"rope_theta": 5e5} | (scaling or {})})
    assert old.rope == new.rope and old.rope.theta == 5e5


def test_scaling_stretches_the_context():
    stretched = {k: LlamaConfig.from_dict(BASE | {"rope_scaling": s}).max_positions for k, s in SCALINGS.items()}
    yarn = {"yarn": 256, "yarn, all": 1024, "yarn, not rounded": 320}
    assert stretched == {"none": 128, "default": 128, "linear": 512, "dynamic": 384, "llama3": 128} | yarn
    assert LlamaConfig.from_dict(BASE | {"rope_scaling": SCALINGS["llama3"]}).rope == Rope(
        "llama3", 10000.0, 8.0, 1.0, 4.0, 64
    )


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_rope_tables_equal_those_of_transformers(scaling, theta):
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    fields = BASE | {"rope_theta": theta, "rope_scaling": scaling and dict(scaling)}
    cos, sin = rope_tables(LlamaConfig.from_dict(fields))
    rotary, x = modeling.LlamaRotaryEmbedding(modeling.LlamaConfig(**fields)), torch.zeros(1)
    # one position after the other, since dynamic scaling there depends on the longest position of the call
    wanted = [torch.cat(t, 1)[0] for t in zip(*(rotary(x, torch.tensor([[p]])) for p in range(len(cos))), strict=True)]
    for got, want in zip((cos, sin), wanted, strict=True):
        torch.testing.assert_close(torch.cat([got, got], -1), want, rtol=0, atol=2e-7)


def test_rope_rows_do_not_depend_on_the_length_of_the_table():
    config = LlamaConfig.from_dict(BASE | {"rope_scaling": SCALINGS["dynamic"]})
    assert all(torch.equal(a, b[:150]) for a, b in zip(rope_tables(config, 150), rope_tables(config), strict=True))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported: wanted one of Llama"),
        ({"architectures": None, "model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq' are not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0"),
        ({"vocab_size": "many"}, "vocab_size: got 'many'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: got 3, wanted a divisor"),
        ({"hidden_size": 250}, "hidden_size: got 250, wanted a multiple"),
        ({"head_dim": 7}, "head_dim: got 7, wanted an even number"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id: got .*, wanted whole numbers"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: got 0"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope' is not supported: wanted"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing in rope_scaling of type 'linear'"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor: got -1"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters of .full_attention. alone"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not supported"),
    ],
)
def test_bad_configurations_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_dict(BASE | change)


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match="no such folder: .*nowhere"):
        LlamaConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no config.json in "):
        LlamaConfig.from_folder(tmp_path)
    path = tmp_path / "config.json"
    for text, message in (("{", "is not valid JSON"), ("[]", "got a list"), (json.dumps({"vocab_size": 3}), "None is")):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"config.json.*{message}") as e:
            LlamaConfig.from_folder(tmp_path)
        assert "\n" not in str(e.value)
