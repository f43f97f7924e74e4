"""The blocks of the guide to parallelism that need a model and a layout of their own run as they stand."""

import parallelism_excerpts
import pytest
from documented import DOCS, fences

PAGE = DOCS / "scale" / "choose_a_layout.md"
EXCERPTS = {
    "loss_parallel": (2, parallelism_excerpts.share_vocabulary),
    "sp_size=2": (4, parallelism_excerpts.share_sequences),
    "forward_backward": (4, parallelism_excerpts.share_stages),
}
"""Words of each block, on how many ranks it runs, and what runs it."""


def excerpts():
    return [
        block for block in fences(PAGE) if block.run_by == "integration-tests/test_parallelism_excerpts.py"
    ]


@pytest.mark.parametrize("words", EXCERPTS)
def test_an_excerpt_trains(world, words):
    num_ranks, body = EXCERPTS[words]
    (block,) = (block for block in excerpts() if words in block.text)
    assert all(world(num_ranks).run(body, block.text))


def test_every_excerpt_is_run():
    assert len(excerpts()) == len(EXCERPTS)
