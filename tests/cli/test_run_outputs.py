"""The command line's handling of samples, penalties, log-probabilities and grammars."""

import json

import pytest
from run_helpers import call, refused

from ssd.runtime.sampling.seeds import derived_seed, sample_seed


def test_samples_one_after_another_and_in_a_file(tiny_folder, tmp_path, capsys):
    file, prompts = tmp_path / "out.json", tmp_path / "prompts.jsonl"
    options = ("--target", tiny_folder, "--max-tokens", 8, "--ignore-eos", "--temperature", 1, "--seed", 3)
    code, out, err = call(capsys, "hi", *options, "--n", 3, "--json", file)
    outputs = json.loads(file.read_text())["outputs"]
    assert code == 0 and "3 answers" in err and [o["index"] for o in outputs] == [0, 1, 2]
    assert out == "".join(f"--- {i + 1} of 3\n{o['text']}\n" for i, o in enumerate(outputs))
    assert all(o["prompt"] == "hi" for o in outputs) and len({o["text"] for o in outputs}) == 3
    assert call(capsys, "hi", *options)[1] == outputs[0]["text"] + "\n"
    prompts.write_text('{"prompt": "hi"}\n{"prompt": "ho"}\n')
    code, out, _ = call(capsys, "--prompts", prompts, *options, "--n", 3)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["prompt"], line["index"]) for line in lines] == [(p, i) for p in ("hi", "ho") for i in range(3)]
    assert [line["text"] for line in lines[:3]] == [o["text"] for o in outputs]
    from ssd.runtime import LLM, SamplingParams

    params = SamplingParams(1.0, seed=sample_seed(derived_seed(3, 0), 2), max_tokens=8, ignore_eos=True)
    (alone,) = LLM(str(tiny_folder)).generate([[{"role": "user", "content": "hi"}]], params)
    assert alone.token_ids == outputs[2]["token_ids"]


def test_penalties_and_logprobs(tiny_folder, tmp_path, capsys):
    file = tmp_path / "out.json"
    options = ("hi", "--target", tiny_folder, "--max-tokens", 40, "--ignore-eos")
    plain = call(capsys, *options)[1]
    for more in (
        ("--repetition-penalty", 2), ("--presence-penalty", 2), ("--frequency-penalty", 2),
        ("--logit-bias", "65=9", "--logit-bias=66=-9"),
    ):  # fmt: skip
        assert call(capsys, *options, *more)[1] != plain
    assert call(capsys, *options, "--logprobs", 2, "--json", file)[1] == plain
    (output,) = json.loads(file.read_text())["outputs"]
    for own, top in zip(output["logprobs"], output["top_logprobs"], strict=True):
        assert own == top[0]["logprob"] > top[1]["logprob"] and set(top[0]) == {"id", "logprob"}
    call(capsys, *options, "--logprobs", 0, "--json", file)
    (output,) = json.loads(file.read_text())["outputs"]
    assert len(output["logprobs"]) == 40 and "top_logprobs" not in output


def test_a_schema_that_is_no_text(tiny_folder, tmp_path, capsys):
    file = tmp_path / "schema.json"
    file.write_bytes(b"\xff{")
    said = refused(capsys, "hi", "--target", tiny_folder, "--json-schema", file)
    assert f"json_schema: {file} is not Unicode text" in said


def test_grammars(tiny_folder, tmp_path, capsys):
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["a", "b"]}')
    options = ("hi", "--target", tiny_folder, "--max-tokens", 40)
    assert json.loads(call(capsys, *options, "--json-schema", schema)[1]) in ("a", "b")
    assert call(capsys, *options, "--regex", "[xy]z", "--mode", "sd", "--draft", tiny_folder)[1] in ("xz\n", "yz\n")
    assert call(capsys, *options, "--json-object")[1].startswith("{")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--logit-bias", "x=1"], "logit_bias: got 'x=1', wanted a token id and a number"),
        (["--logit-bias", "5=1000"], "logit_bias: got 1000.0, wanted numbers in [-100, 100]"),
        (["--logit-bias", "272=1"], "logit_bias: got token 272, wanted token ids from 0 to 271"),
        (["--logprobs", "3"], "--logprobs: go to the file of --json; add that option"),
        (["--n", "0"], "n: got 0, wanted 1 to 128"),
        (["--presence-penalty", "3"], "presence_penalty: got 3.0, wanted a number in [-2, 2]"),
        (["--json-schema", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["--json-object", "--regex", "a"], "json_object, json_schema, regex: got more than one"),
        (["--regex", "("], "regex: got (, which is refused"),
    ],
)
def test_refusals(arguments, message, tiny_folder, capsys):
    if arguments == ["--regex", "("]:
        pytest.importorskip("llguidance")
    assert message in refused(capsys, "hi", "--target", tiny_folder, *arguments)
