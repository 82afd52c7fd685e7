"""``byteprophet simulate``, as a user calls it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli

_ANY = ["simulate", "--cluster", "dgx-a100", "--gpus", "8"]
_GPT = ["simulate", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "1024", "--strategy"]


def test_prints_times_and_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    assert run_cli([*_GPT, "tp=8 pp=16 micro_batches=64", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    for words in ("iteration time", "model FLOPs utilisation", "pipeline bubble", "Peak memory"):
        assert words in printed
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert sum(figures["by_use_ns"].values()) == figures["iteration_ns"]
    assert 0.2 < figures["mfu"] < 0.82
    assert figures["fits"]
    assert len(figures["memory_bytes"]) == 16


def test_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*_GPT, "tp=8 pp=2 micro_batches=8"]) == 0
    assert "Out of memory: a GPU has 79.2 GiB" in capsys.readouterr().out


def test_slow_ranks_and_failures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    job = [*_ANY[:-1], "32", "gpt3-1.3b", "--strategy", "tp=2 dp=4 pp=4 micro_batches=2"]
    times = []
    for more in ([], ["--straggler", "17=1.5"], ["--jitter", "0.05", "--gpu-mtbf", "50000"]):
        assert run_cli([*job, "--json", str(out), *more]) == 0
        figures = json.loads(out.read_text(encoding="utf-8"))
        times.append(figures["iteration_ns"])
    assert times[0] < times[2] < times[1]
    # 50,000 / 32 = 1,562.5 hours between failures; Young: sqrt(2 x 60 s x that) = 26 thousand s.
    assert figures["failures"]["mtbf_s"] == pytest.approx(1_562.5 * 3600)
    assert 0.9 < figures["failures"]["goodput"] < 1
    assert (figures["cluster"], figures["strategy"]) == ("dgx-a100", job[-1])
    assert "A failure every 1.56e+03 hours: save every 432 minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*_ANY, "gpt2", "--strategy", "dp=8", "--straggler", "x=2"], "expected RANK=FACTOR"),
        ([*_ANY, "gpt2", "--strategy", "dp=8", "--straggler", "8=2"], "only ranks 0 to 7"),
        (
            [*_ANY, "gpt2", "--strategy", "dp=8", "--straggler", "5=2", "--straggler", "5=3"],
            "rank 5 is given twice",
        ),
        ([*_ANY, "gpt2", "--strategy", "dp=8", "--gpu-mtbf", "0"], "between failures"),
        ([*_ANY, "gpt2", "--checkpoint", "9"], "--checkpoint needs --gpu-mtbf"),
        ([*_ANY, "gpt2", "--seed", "9"], "--seed needs --jitter"),
        (
            [*_ANY, "gpt2", "--workload", "w.toml", "--straggler", "1=2"],
            "--straggler has no effect",
        ),
        ([*_ANY, "gpt2", "--workload", "w.toml", "--jitter", "0.1"], "--jitter has no effect"),
        ([*_ANY, "gpt2", "--batch", "8", "--jitter", "0.1"], "need --strategy, not --batch"),
        ([*_ANY, "gpt2", "--strategy", "precision=fp8"], "needs gpu.fp8_flops_per_s"),
        ([*_GPT, "tp=16 pp=8 sp=1 zero=9"], "zero is 9"),
        ([*_GPT, "tp=5"], "there are 1024 GPUs"),
        ([*_GPT, "tp=128"], "layers.0.attention.qkv: heads has size 96"),
        ([*_ANY, "gpt2", "--strategy", "tp=4"], "Megatron-LM pads it: set vocabulary=50688, as in"),
        (["simulate", "nothing", "--cluster", "dgx-a100", "--gpus", "8"], "model nothing: not"),
        (["simulate", "gpt2", "--cluster", "nowhere", "--gpus", "8"], "cluster nowhere"),
        (["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "0"], "--gpus 0"),
        (["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "12"], "multiple of the 8"),
        ([*_GPT[:-2], "3072", "--strategy", "tp=3"], "groups of 3 neighbouring ranks (up to tp)"),
        (
            ["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "8", "--sequence", "2048"],
            "longer than its 1024 position embeddings",
        ),
        (
            [*_ANY, "gpt:layers=999999999,hidden=64,heads=1"],
            "layers is 999999999: must be at most 10000",
        ),
        (
            [*_ANY, "gpt:layers=1,hidden=900000000,heads=1,sequence=99999999"],
            "longer than a century",
        ),
        (
            ["simulate", "gpt:layers=4,hidden=100,heads=3", "--cluster", "dgx-a100", "--gpus", "8"],
            "hidden 100 is no multiple of the 3 heads",
        ),
    ],
)
def test_refuses_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(arguments) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("how", [["--strategy", "tp=8"], ["--batch", "8"]])
@pytest.mark.parametrize(("option", "name"), [("--json", "none/x.json"), ("--out", "file/out")])
def test_says_before_the_work_that_nothing_could_be_written(
    how: list[str],
    option: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    for module, load in (("simulate", "load_model"), ("simulate_search", "load_source")):
        monkeypatch.delattr(f"byteprophet.cli.{module}.{load}")  # no work without it
        monkeypatch.delattr(f"byteprophet.cli.{module}.write_whole")
    assert run_cli([*_ANY, "gpt2", *how, option, str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"{name}: cannot be written: " in error
    assert error.count("\n") == 1


def test_searches_for_a_strategy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    call = ["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "8", "--batch", "8"]
    assert run_cli([*call, "--json", str(out), "--strategy", "precision=fsdp2"]) == 0
    found = json.loads(out.read_text(encoding="utf-8"))["strategies"]
    assert all(one["strategy"].endswith(" precision=fsdp2") for one in found)
    best = min((one for one in found if one["fits"]), key=lambda one: one["iteration_ns"])
    printed = capsys.readouterr().out
    assert best["strategy"] in printed
    assert "8 samples of 1,024 tokens per iteration" in " ".join(printed.split())
    assert "Not simulated with tp=2, 4, 8: the vocabulary of 50257 cannot be divided so." in printed
    assert "as in gpt2:vocabulary=51200" in printed
    assert run_cli([*call, "--strategy", "tp=8"]) == 2
    error = capsys.readouterr().err
    assert "--strategy with --batch: tp: is searched for" in error
    assert error.count("\n") == 1


def test_reads_a_hugging_face_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, object] = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    call = ["simulate", "", "--cluster", "dgx-h100", "--gpus", "8", "--strategy", "zero=3"]
    printed = []
    for model in (str(path), "llama3-8b"):
        call[1] = model
        assert run_cli(call) == 0
        printed.append(capsys.readouterr().out.splitlines()[1:])
    assert printed[0] == printed[1]
    path.write_text(json.dumps(config | {"max_position_embeddings": 131072}), encoding="utf-8")
    for more, tokens in (([], "8,192"), (["--sequence", "131072"], "131,072")):
        assert run_cli([*call[:1], str(path), *call[2:], *more]) == 0
        assert f"8.03 billion parameters, {tokens} tokens per sample, on 8 GPUs" in (
            capsys.readouterr().out
        )
    for change, said in (
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"mlp_bias": True}, "mlp_bias is True, which is not simulated"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false': must be true or false"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window is 4096, which is not"),
        ({"model_type": "mistral"}, "sliding_window is 4096, which is not simulated"),
        (
            {"model_type": "mixtral", "max_position_embeddings": None},
            "max_position_embeddings is missing",
        ),
    ):
        path.write_text(json.dumps(config | change), encoding="utf-8")
        assert run_cli([*call[:1], str(path), *call[2:]]) == 2
        assert said in capsys.readouterr().err


def test_writes_a_page_and_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figures, out = tmp_path / "figures.json", tmp_path / "out"
    call = [*_GPT, "tp=8 pp=16 micro_batches=32", "--json", str(figures), "--out", str(out)]
    assert run_cli(call) == 0
    printed = capsys.readouterr().out
    assert f"page: {out / 'simulation.html'}" in printed
    iteration_ns = json.loads(figures.read_text(encoding="utf-8"))["iteration_ns"]
    assert f'"iteration_ns":{iteration_ns}' in (out / "simulation.html").read_text("utf-8")
    trace = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    processes = {
        event["args"]["name"]: event["pid"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    assert list(processes) == ["critical path", *(f"rank-{rank}" for rank in range(16))]
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    last_us = max(event["ts"] + event["dur"] for event in slices)
    assert last_us == pytest.approx(iteration_ns / 1e3, abs=1)
    forwards = [event for event in slices if event["args"]["kind"] == "forward"]
    own = [event for event in forwards if event["pid"] == processes["rank-3"]]
    assert [event["name"] for event in own] == [f"micro-batch {at}" for at in range(32)]


def test_calibrates_and_saves_the_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A job that takes 10% longer than predicted takes about as long as measured afterwards."""
    runs, saved, figures = (tmp_path / name for name in ("runs.csv", "mine.toml", "figures.json"))
    call = [*_GPT[:4], "--gpus", "64", "--strategy", "tp=8 pp=8 micro_batches=16"]
    end = ["--json", str(figures)]
    assert run_cli([*call[:2], "--cluster", "dgx-a100", *call[4:], *end]) == 0
    capsys.readouterr()
    before = json.loads(figures.read_text(encoding="utf-8"))
    assert before["low_ns"] < before["iteration_ns"] < before["high_ns"]
    seconds = 1.1 * before["iteration_ns"] / 1e9
    header = "model,strategy,gpus,seconds"
    runs.write_text(f"{header}\ngpt3-175b,tp=8 pp=8 micro_batches=16,64,{seconds}\n")
    options = ["--calibrate", str(runs), "--save-cluster", str(saved)]
    assert run_cli([*call[:2], "--cluster", "dgx-a100", *call[4:], *options, *end]) == 0
    printed = capsys.readouterr().out
    assert "gpu.matmul_efficiency" in printed
    assert "-9.1%" in printed
    after = json.loads(figures.read_text(encoding="utf-8"))
    assert after["iteration_ns"] == pytest.approx(seconds * 1e9, rel=0.04)
    assert run_cli([*call[:2], "--cluster", str(saved), *call[4:], *end]) == 0
    again = json.loads(figures.read_text(encoding="utf-8"))
    assert again["iteration_ns"] == after["iteration_ns"]
    assert run_cli([*call, "--save-cluster", str(saved)]) == 2
    assert "--save-cluster: goes with --calibrate" in capsys.readouterr().err
