from types import SimpleNamespace

from accel_backends.strategies.deepspeed.checkpoints.counters import counters_in, restore_counters


def engine(**scaler):
    optimizer = SimpleNamespace(overflow=False, loss_scaler=SimpleNamespace(**scaler))
    return SimpleNamespace(global_steps=0, global_samples=0, skipped_steps=0, optimizer=optimizer)


SAVED = {"overflow": True, "dynamic_loss_scale": True, "loss_scaler": SimpleNamespace(cur_scale=4.0)}


def test_an_engine_continues_counting_and_scaling_where_another_was():
    here = engine(cur_scale=1.0)
    restore_counters(here, counters_in({"global_steps": 3, "skipped_steps": 1, "module": {}}, SAVED))
    assert (here.global_steps, here.global_samples, here.skipped_steps) == (3, 0, 1)
    assert here.optimizer.loss_scaler.cur_scale == 4.0
    assert here.optimizer.overflow is True
    assert not hasattr(here.optimizer, "dynamic_loss_scale")  # which this kind of optimizer does not have


def test_a_scale_of_another_kind_is_left_unchanged():
    here = engine(cur_scale=1.0, cur_iter=0)
    restore_counters(here, counters_in({}, SAVED))
    assert here.optimizer.loss_scaler.cur_scale == 1.0
