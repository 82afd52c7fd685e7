"""Strategies from lines and files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.explain.plain import strategy_words
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.file import read_strategy
from byteprophet.simulate.tree.node import Tree
from byteprophet.simulate.tree.one_line import parse_strategy

_FILE = """
micro_batches = 8
zero = 1

[mesh]
tp = 2
dp = 4
pp = 2

[nodes.""]
split = { dp = "batch", tp = ["heads", "inner", "vocabulary"] }

[nodes."layers.*"]
recompute = true
"""


def test_a_file_a_line_and_a_tree_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    path.write_text(_FILE, encoding="utf-8")
    tree = Tree(Mesh(tp=2, dp=4, pp=2))
    tree.split("batch", "dp").split(["heads", "inner", "vocabulary"], "tp")
    tree["layers.*"].recompute()
    tree.schedule(8).shard(1)
    line = parse_strategy("tp=2 pp=2 zero=1 micro_batches=8 recompute=full", 16)
    strategies = [read_strategy(path, 16), tree.strategy(), line]
    model = build(*find_model("gpt3-1.3b"), line.samples)
    forwards = [
        [block.compiled.forward for stage in compile_program(model, one).stages
         for block in stage.blocks]
        for one in strategies
    ]  # fmt: skip
    assert forwards[0] == forwards[1] == forwards[2]
    assert len({(one.mesh, one.zero, one.micro_batches) for one in strategies}) == 1


def test_a_later_rule_that_recomputes_nothing_holds(tmp_path: Path) -> None:
    text = _FILE + '[nodes."layers.0"]\nrecompute = false\n[nodes."layers.1"]\nsplit = {}\n'
    (tmp_path / "strategy.toml").write_text(text, encoding="utf-8")
    strategy = read_strategy(tmp_path / "strategy.toml", 16)
    model = build(*find_model("gpt3-1.3b"), strategy.samples)
    blocks = compile_program(model, strategy).stages[0].blocks[1:4]  # behind the embedding
    kept = [block.compiled.saved_bytes for block in blocks]
    assert kept[0] > 2 * kept[1]
    assert kept[1] == kept[2]
    assert strategy_words(strategy)["recomputed in the backward pass"] == "layers.*, not layers.0"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tp=3", "is 6, but there are 8 GPUs"),
        ("tp=16", "is 16, but there are 8 GPUs"),
        ("sp=2", "sp is 2: must be 0 or 1"),
        ("ring=2", "ring is 2: must be 0 or 1"),
        ("tp=2 tp=4", "tp is given twice"),
        ("tensor=2", "tensor=2: expected KEY=VALUE; keys are tp"),
        ("tp=two", "tp is 'two': must be a whole number"),
        ("pp=0", "pp is 0: must be at least 1"),
        ("ep=3", "ep is 3: must divide the 8 data-parallel ranks"),
        ("schedule=fast", "use one of gpipe"),
        ("recompute=some", "use one of none"),
        ("precision=fp4", "use one of bf16"),
        ("pp=2 schedule=interleaved", "needs several chunks"),
        ("pp=4 schedule=interleaved chunks=2 micro_batches=9", "use 10, or a multiple of the 4"),
        ("zero=3 reshard=maybe", "reshard is .maybe.: use one of default, always, never"),
        ("zero=4", "must be from 0 to 3"),
        ("zero=2 all_reduce=1", "zero=2 with all_reduce: .* use zero=1"),
        ("zero=2 overlap=0", "zero=2 with overlap=0: .* use zero=0 or 1"),
        ("zero=3 overlap=0", "zero=3 with overlap=0"),
        ("zero=2 reshard=never", "reshard=never has no effect without zero=3"),
        ("ring=1", "ring=1 has no effect without cp > 1"),
        ("zero=3 bucket_mb=50", "bucket_mb=50 has no effect without zero < 3"),
        ("tp=2 scatter_gather=1", "scatter_gather=1 has no effect without pp > 1"),
        ("pp=2 scatter_gather=1", "scatter_gather=1 has no effect without tp > 1"),
        ("all_reduce=1", "all_reduce=1 has no effect without zero=1"),
        ("micro_batches=4 max_ongoing=2", "max_ongoing=2 has no effect without pp > 1"),
        ("schedule=zb1p posted_receives=1", "posted_receives=1 has no effect without pp > 1"),
        ("overlap_p2p=0", "overlap_p2p=0 has no effect without pp > 1"),
        (
            "pp=2 schedule=zb1p posted_receives=1 overlap_p2p=0",
            "overlap_p2p=0 has no effect without posted_receives=0",
        ),
        ("sp=1", "sp=1 has no effect without tp > 1"),
    ],
)
def test_lines_that_are_wrong_are_refused(line: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_strategy(line, 8)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tp = 2", "xp = 2", "mesh.xp = 2: expected AXIS = DEGREE"),
        ("tp = 2", "tp = 4", "mesh has 32 ranks, but there are 16"),
        ("zero = 1", "zorro = 1", "zorro: there is no such setting"),
        ("zero = 1", 'zero = "1"', "zero is '1': must be of type int"),
        ("recompute = true", "recompute = 1", "recompute is 1: must be true or false"),
        ("recompute = true", "recomputes = true", r"recomputes: there is no such setting"),
        ('dp = "batch"', "dp = 3", "split.dp is 3: must be a dimension"),
        ("recompute = true", "stage = -1", "stage is -1"),
        ("split = { dp", "recompute = true\nsplit = { dp", "root: recompute: .* such as layers"),
        ("recompute = true", "micro_batches = 2.0", "micro_batches is 2.0: must be a whole number"),
        ("recompute = true", "max_ongoing = 2", "max_ongoing needs micro_batches, at least 1"),
    ],
)
def test_files_that_are_wrong_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "strategy.toml"
    assert old in _FILE
    path.write_text(_FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_strategy(path, 16)


def test_blocks_run_on_the_stages_that_the_tree_says() -> None:
    tree = Tree(Mesh(pp=2))
    tree["layers.20"].map(1)
    model = build(*find_model("gpt3-1.3b"), 1)
    stages = compile_program(model, tree.strategy()).stages
    assert [len(stage.blocks) for stage in stages] == [1 + 20, 4 + 1]
    tree["layers.22"].map(0)
    with pytest.raises(UserError, match=r"layers.22: stage 0 after stage 1"):
        compile_program(model, tree.strategy())


def test_only_children_of_the_root_have_a_stage() -> None:
    tree = Tree(Mesh(pp=2))
    tree["layers.*.mlp"].map(1)
    with pytest.raises(UserError, match=r"layers.0.mlp: stage: only a child of the root"):
        compile_program(build(*find_model("gpt3-1.3b"), 1), tree.strategy())


def test_activations_that_are_split_cannot_be_sent_in_parts() -> None:
    model = build(*find_model("gpt3-1.3b"), 1)
    line = "tp=2 pp=2 scatter_gather=1"
    first, last = compile_program(model, parse_strategy(line, 4)).stages
    assert (first.gathered_bytes, last.gathered_bytes) == (0, 2 * last.received_bytes)
    with pytest.raises(UserError, match=r"scatter_gather=1 has no effect: .* split over tp"):
        compile_program(model, parse_strategy(f"{line} sp=1", 4))


def test_all_settings_are_said() -> None:
    line = "tp=2 cp=2 pp=2 dp=2 zero=3 reshard=always ring=1 copies=1 sp=1 micro_batches=4"
    words = strategy_words(parse_strategy(line, 16))
    assert {words[name] for name in ("ring", "copies")} == {"1"}
    assert words["reshard"] == "always"
    assert "tp splits features or heads or inner or vocabulary or sequence" in words["all nodes"]
    assert not {"eager", "bucket_mb", "max_ongoing"} & words.keys()
    tree = Tree(Mesh(tp=2, pp=2))
    tree["layers.*.mlp"].split("heads", "tp").split("inner", "tp").schedule(4, max_ongoing=1)
    tree["layers.20"].map(1)
    words = strategy_words(tree.strategy())
    assert words["nodes layers.20"] == "stage 1"
    assert words["nodes layers.*.mlp"] == (
        "tp splits inner; 4 micro-batches along batch, at most 1 ongoing"
    )


def test_layers_that_do_not_divide_leave_the_middle_stages_one_more() -> None:
    model = build(*find_model("llama3-405b"), 1)
    stages = compile_program(model, parse_strategy("pp=8", 8)).stages
    assert [len(stage.blocks) for stage in stages] == [16, 16, 16, 16, 16, 16, 16, 16]
    with pytest.raises(UserError, match="200 pipeline stages, but model llama3-405b has only 128"):
        compile_program(model, parse_strategy("pp=200", 200))
