"""Bad input of a benchmark is refused in one sentence that names the option."""

import importlib
import runpy
import sys

import pytest


@pytest.mark.parametrize(
    "command,arguments,message",
    [
        ("exact", "--limit 0", "--limit: got 0, wanted a whole number, at least 1"),
        ("exact", "--target /no/such/model", "ssd: no such folder: /no/such/model"),
        ("exact", "--device cuda:99", "ssd: device: got 'cuda:99', but this torch sees "),
        ("hit_rate", "--device cuda:99", "ssd: device: got 'cuda:99', but this torch sees "),
        ("hit_rate", "--device gpu", "ssd: device: got 'gpu', wanted cpu, cuda, or cuda:N"),
        ("hit_rate", "--fan-out x", "--fan-out: got 'x', wanted numbers such as 1,2,4"),
        ("hit_rate", "--temperatures 0,warm", "--temperatures: got '0,warm', wanted numbers such as 0,0.5"),
        ("hit_rate", "--verify foo", "--verify: got 'foo', wanted some of coupled, rejection, saguaro"),
        ("hit_rate", "--target /no/such/model", "ssd: no such folder: /no/such/model"),
        ("precision", "--target /no/such/model", "ssd: no such folder: /no/such/model"),
        ("ngram", "--max-tokens 0", "--max-tokens: got 0"),
        ("roofline", "--cores 99999", "ssd: cores: got 99999"),
        ("linear", "--rows x", "--rows: got 'x'"),
        ("plots", "/no/such/file.json", "ssd: /no/such/file.json: No such file or directory"),
        ("plots", "requirements.txt", "ssd: requirements.txt: holds no results of a benchmark, nor a trace"),
    ],
)
def test_bad_input_of_a_benchmark_is_one_sentence(command, arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [command, *arguments.split()])
    monkeypatch.delitem(sys.modules, f"bench.{command}", raising=False)
    if command == "plots":
        pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"bench.{command}", run_name="__main__")
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, said",
    [
        ("bench.decode --target TINY --data no/such/file", "--data: [Errno 2] No such file"),
        ("bench.decode --target TINY --modes ar,sdd", "--modes: got 'sdd', wanted some of ar, sd, ssd, auto"),
        ("bench.exact --target TINY --modes sdd", "--modes: got 'sdd', wanted some of ar, sd, ssd, auto"),
        ("bench.theory --target TINY --modes sdd", "--modes: got 'sdd', wanted some of "),
        ("bench.contention --modes sdd", "--modes: got 'sdd', wanted some of ar, sd, ssd"),
        ("bench.ngram --target TINY --data no/such/file", "--data: [Errno 2]"),
        ("bench.peers.gguf_file no/such.gguf Q8_0", "no such file: no/such.gguf"),
    ],
)
def test_refusals(command, said, tiny_folder, monkeypatch, capsys):
    name, *arguments = command.replace("TINY", str(tiny_folder)).split()
    main = importlib.import_module(name).main
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]
