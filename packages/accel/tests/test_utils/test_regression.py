import pytest
import torch
from torch.utils.data import DataLoader

from accel.test_utils.regression import RegressionDataset, RegressionModel


def test_points_are_those_that_users_know():
    points = RegressionDataset(length=4, seed=3)
    assert len(points) == 4
    assert points[0] == {"x": pytest.approx(2.040919), "y": pytest.approx(7.0365734)}


def test_the_line_is_found(capsys):
    model = RegressionModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        for batch in DataLoader(RegressionDataset(seed=1), batch_size=16):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
    assert [model.a.item(), model.b.item()] == pytest.approx([2, 3], abs=0.1)
    assert (
        capsys.readouterr().out.count("Model dtype: torch.float32, torch.float32. Input dtype: torch.float32")
        == 1
    )
