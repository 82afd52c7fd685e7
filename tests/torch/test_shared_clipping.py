"""Gradients that are clipped in jobs without servers: as others clip them, without sending them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .shared_jobs import assert_alike, train

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]


@pytest.mark.parametrize("by", ["norm", "value"])
def test_clipping_as_ddp_does(by: str, tmp_path: Path) -> None:
    """By what each rank has, of whole and of shared groups."""
    options = {"iterations": (0, 12), "clip": by, "read": True}
    results = train(tmp_path / "mixed", 3, sync="dear-planned", fusion=4096, adopt_at=3, **options)
    assert_alike(results)
    wholes = {whole for _, whole in results[0]["seen"]["groups"]}
    assert wholes == {True, False}
    for other in results[1:]:
        for what in ("norms", "gradients"):
            torch.testing.assert_close(other[what], results[0][what], rtol=0, atol=0)
    (ddp, *_) = train(tmp_path / "ddp", 3, **options)
    for what in ("parameters", "state", "norms", "gradients"):
        torch.testing.assert_close(results[0][what], ddp[what], rtol=2e-4, atol=1e-5)


def test_clipping_sends_no_gradients(tmp_path: Path) -> None:
    """Only a norm per rank and iteration, in a sum that has a place for each."""
    sent = {}
    for clip in (None, "norm"):
        options = {"sync": "dear", "fusion": 4096, "iterations": (0, 8), "clip": clip}
        results = train(tmp_path / str(clip), 3, **options)
        sent[clip] = [result["seen"]["sent_bytes"] for result in results]
    for plain, clipped in zip(sent[None], sent["norm"], strict=True):
        assert 0 < clipped - plain <= 8 * 2 * 3 * 8
