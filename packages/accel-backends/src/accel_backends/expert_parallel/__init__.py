"""Expert parallelism: experts sharded over ranks, and the tokens that are sent to them."""
