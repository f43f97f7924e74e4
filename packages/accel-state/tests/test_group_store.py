import torch.distributed as dist

from accel_state.group_store import store_of


def exchange_a_key():
    group = dist.new_group(backend="gloo")
    store = store_of(group)
    if dist.get_rank() == 0:
        store.set("key", "value")
    assert store.get("key") == b"value"
    dist.destroy_process_group(group)


def test_ranks_exchange_a_key_through_the_store_of_their_group(world):
    world(2).run(exchange_a_key)
