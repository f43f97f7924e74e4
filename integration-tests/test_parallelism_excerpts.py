"""The blocks of the guide to parallelism that need a model and their own layout run unchanged."""

import parallelism_excerpts
import pytest
from documented import DOCS, fences

EXCERPTS = {
    "tensor_parallel.md": (2, parallelism_excerpts.share_vocabulary),
    "context_parallel.md": (4, parallelism_excerpts.share_sequences),
    "pipeline.md": (4, parallelism_excerpts.share_stages),
}
"""Pages in `scale` with such a block, on how many ranks it runs, and what runs it."""


def excerpts(page):
    return [
        block
        for block in fences(DOCS / "scale" / page)
        if block.run_by == "integration-tests/test_parallelism_excerpts.py"
    ]


@pytest.mark.parametrize("page", EXCERPTS)
def test_an_excerpt_trains(world, page):
    num_ranks, body = EXCERPTS[page]
    (block,) = excerpts(page)
    assert all(world(num_ranks).run(body, block.text))
