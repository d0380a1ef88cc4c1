"""Bad options, prompts, models and files are refused in one sentence, and no file is lost."""

import json

import pytest
import tiny_checkpoint
import torch
from run_helpers import call, refused
from safetensors.torch import load_file, save_file

from ssd.cli.command import BadInput
from ssd.run import read_prompts


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "give one prompt, or --prompts FILE"),
        (["hi", "--prompts", "x.jsonl"], "give one prompt, or --prompts FILE"),
        ([""], "prompt: is empty"),
        (["  "], "prompt: is empty"),
        (["hi", "--mode", "sd", "--draft", "/no/such/draft"], "no such folder: /no/such/draft"),
        (["hi", "--mode", "sd"], "draft: none comes with"),
        (["hi", "--mode", "ssd", "--draft", "ngram"], "draft: got ngram, wanted a draft model"),
        (["hi", "--mode", "ssd", "--verify", "rejection", "--tree-width", "2"], "tree_width: got 2"),
        (["hi", "--mode", "ssd", "-k", "50"], "branches: got 24"),
        (["hi", "--mode", "ssd", "--branches", "0"], "branches: got 0"),
        (["hi", "--mode", "ssd", "--draft-threads", "x"], "--draft-threads: got 'x'"),
        (["hi", "--mode", "sd", "--draft", "ngram", "-k", "0"], "k: got 0"),
        (["hi", "--mode", "sd", "--draft", "ngram", "--saguaro", "0.5"], "saguaro: applies to rejection sampling only"),
        (["hi", "--trace", "/no/such/folder/t.json"], "--trace: cannot write"),
        (["hi", "--mode", "magic"], "invalid choice: 'magic'"),
        (["hi", "--unknown"], "unrecognized arguments: --unknown"),
        (["hi", "--max-tokens", "0"], "max_tokens: got 0"),
        (["hi", "--max-tokens", "many"], "invalid int value: 'many'"),
        (["hi", "--temperature", "-1"], "temperature: got -1.0"),
        (["hi", "--temperature", "nan"], "temperature: got nan"),
        (["hi", "--top-p", "0"], "top_p: got 0.0"),
        (["hi", "--top-p", "1.5"], "top_p: got 1.5"),
        (["hi", "--top-k", "-3"], "top_k: got -3"),
        (["hi", "--min-p", "1"], "min_p: got 1.0"),
        (["hi", "--seed", "-1"], "seed: got -1"),
        (["hi", "--stop", ""], "stop: got an empty string"),
        (["hi", "--stop-token-ids", "1,x"], "--stop-token-ids: got '1,x', wanted numbers such as 1,2,4"),
        (["hi", "--stop-token-ids", "1,272"], "stop_token_ids: got 272, wanted token ids from 0 to 271"),
        (["hi", "--min-tokens", "9", "--max-tokens", "8"], "min_tokens: got 9, wanted 0 to max_tokens, 8"),
        (["hi", "--batch", "0"], "--batch: got 0"),
        (["hi", "--prompt-attention", "flash"], "prompt_attention: flash needs a model on a GPU (device cuda)"),
        (["hi", "--prompt-attention", "sdpa"], "invalid choice: 'sdpa'"),
        (["hi", "--threads", "7-4"], "--threads: got '7-4'"),
        (["hi", "--threads", "0-0-0"], "--threads: got '0-0-0'"),
        (["hi", "--mode", "ssd", "--draft-threads", "99999"], "draft_threads: got 99999"),
        (["hi", "--mode", "ar", "-k", "3"], "-k: needs a mode that speculates (--mode sd, ssd or auto)"),
        (["hi", "--mode", "ar", "--draft", "ngram"], "--draft: needs a mode that speculates"),
        (["hi", "--mode", "ar", "--verify", "rejection"], "--verify: needs a mode that speculates"),
        (["hi", "--mode", "ar", "--fan-out", "2"], "--fan-out: needs a mode that speculates"),
        (["hi", "--mode", "ar", "--branches", "8"], "--branches: needs a mode that speculates"),
        (["hi", "--mode", "sd", "--branches", "8"], "a draft that runs beside the target (--mode ssd or auto)"),
        (["hi", "--mode", "sd", "--fan-out", "2"], "--fan-out: needs a draft that runs beside the target"),
        (
            ["hi", "--mode", "sd", "--backup-draft", "large"],
            "--backup-draft: needs a draft that runs beside the target",
        ),
        (["hi", "--mode", "sd", "--draft-threads", "1"], "--draft-threads: needs a draft that runs beside the target"),
        (["hi", "--draft", "ngram", "--branches", "8"], "a draft model, which --draft ngram does without"),
        (["hi", "--draft", "ngram", "--fan-out", "2"], "--fan-out: needs a draft model"),
        (["hi", "--draft", "ngram", "--backup-draft", "large"], "--backup-draft: needs a draft model"),
        (["hi", "--draft", "ngram", "--draft-threads", "1"], "--draft-threads: needs a draft model"),
        (["hi", "--draft", "ngram", "--draft-device", "cpu"], "--draft-device: needs a draft model"),
        (["hi", "--mode", "sd", "--draft", "ngram", "--draft-dtype", "bf16"], "--draft-dtype: needs a draft model"),
        (["hi", "--verify", "rejection", "--branches", "8"], "--branches: needs --mode ssd"),
        (["hi", "--mode", "ssd", "--fan-out", "2", "--branches", "8"], "branches: got 8 with fan_out 2, wanted one"),
        (["hi", "--json", ""], "--json: got an empty text"),
        (["hi", "--draft", ""], "--draft: got an empty text"),
        (["hi", "--target", ""], "--target: got an empty text"),
        (["hi", "--json-schema", ""], "--json-schema: got an empty text"),
        (["hi", "--json", "/proc/out.json"], "--json: cannot write /proc/out.json"),
        (["hi", "--trace", "/proc/out.json"], "--trace: cannot write /proc/out.json"),
        (["hi", "--kv-tokens", "0"], "kv_tokens: got 0"),
        (["hi" * 40, "--kv-tokens", "64"], "wanted at most 63 in a KV cache of 64"),
        (["hi", "--threads", "0"], "wanted at least one thread; core 0 alone is written 0-0"),
        (["hi", "--threads", "99999"], "threads: got 99999"),
        (["hi", "--threads", "4-x"], "--threads: got '4-x'"),
        (["hi", "--target", "/no/such/folder"], "no such folder: /no/such/folder"),
        (["hi", "--json", "/no/such/folder/out.json"], "--json: cannot write"),
        (["--prompts", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["\udcff"], "not UTF-8"),
    ],
)
def test_bad_options(arguments, message, tiny, capsys):
    target = [] if "--target" in arguments else ["--target", tiny]
    assert message in refused(capsys, *arguments, *target)


@pytest.mark.parametrize(
    "line,message",
    [
        ('{"prompt": "a"', "line 3: is not a JSON object"),
        ('"prompt"', "line 3: is not a JSON object"),
        ('{"text": "a"}', "line 3: got a prompt of None"),
        ('{"prompt": 5}', "line 3: got a prompt of 5"),
        ('{"prompt": ""}', "line 3: is empty"),
        ("[" * 100000, "line 3: is not a JSON object"),
        (b"\xff\xfe", "line 3: is not a JSON object"),
        (json.dumps({"prompt": "long " * 60}), "line 3: got 3"),
    ],
)
def test_broken_line_of_a_prompts_file(line, message, tiny, tmp_path, capsys):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "fine"}\n\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    assert message in refused(capsys, "--prompts", file, "--target", tiny)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_prompts_file_in_any_unicode_encoding(encoding, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "größer"}\n\n{"prompt": "日本"}\n', encoding=encoding)
    assert [prompt for _, prompt in read_prompts(str(file))] == ["größer", "日本"]
    file.write_bytes(b'\xff\xfe{"')
    with pytest.raises(BadInput, match="line 1: is not a JSON object|is not Unicode text"):
        read_prompts(str(file))


def test_prompts_file_without_a_prompt(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n \n")
    with pytest.raises(BadInput, match="holds no prompt"):
        read_prompts(str(file))


def test_bad_models(tiny, tmp_path, capsys):
    def broken(name, **changes):
        return tiny_checkpoint.write(tmp_path / name, **changes)

    assert "MambaForCausalLM" in refused(
        capsys, "hi", "--target", broken("arch", architectures=["MambaForCausalLM"], model_type="mamba")
    )
    folder = broken("tensors")
    path, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    good = load_file(path)
    for change, message in [
        ({name: None}, name),
        ({name: torch.zeros(3, 4)}, f"tensor {name}"),
        ({name: torch.full_like(good[name], torch.nan)}, "NaN"),
    ]:
        save_file({k: v for k, v in (good | change).items() if v is not None}, path)
        assert message in refused(capsys, "hi", "--target", folder)
    path.write_bytes((tiny / "model.safetensors").read_bytes()[:-100])
    assert "model.safetensors" in refused(capsys, "hi", "--target", folder)
    (tiny / "tokenizer.json").rename(tiny / "gone")
    assert "tokenizer.json" in refused(capsys, "hi", "--target", tiny)
    (tiny / "gone").rename(tiny / "tokenizer.json")


def test_prompt_longer_than_the_context(tiny, capsys):
    assert "got 276 tokens, wanted at most 255" in refused(capsys, "x" * 257, "--target", tiny)


def test_a_file_that_two_options_name(tiny, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "a"}')
    both = ("--target", tiny, "--json", out, "--trace", tmp_path / "." / "out.json")
    assert "--trace: cannot write" in refused(capsys, "hi", *both) and not out.exists()
    assert "another option" in refused(capsys, "--prompts", prompts, "--target", tiny, "--json", prompts)
    assert prompts.read_text() == '{"prompt": "a"}'
    assert "--show: colours" in refused(capsys, "--prompts", prompts, "--target", tiny, "--show")
    ours = ("--json", "/dev/null", "--trace", "/dev/null")
    assert call(capsys, "hi", "--target", tiny, "--max-tokens", 2, *ours)[0] == 0


def test_a_refusal_leaves_files_as_they_were(tiny, tmp_path, capsys):
    old, new, link = tmp_path / "old.json", tmp_path / "new.json", tmp_path / "link.json"
    old.write_text("kept")
    link.symlink_to(tmp_path / "gone.json")
    for file in (old, new, link):
        refused(capsys, "hi", "--target", tiny, "--temperature", "-1", "--json", file)
    assert old.read_text() == "kept" and not new.exists() and link.is_symlink()


def test_no_room_on_disk(tiny, capsys):
    code, out, err = call(capsys, "hi", "--target", tiny, "--max-tokens", 2, "--json", "/dev/full")
    assert (
        code == 2
        and out
        and "--json: cannot write /dev/full: No space left on device" in err
        and "Traceback" not in err
    )
