from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("trackers")


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with mlflow's tables, which takes seconds to make."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    code = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments()"
    quiet = {"HOME": str(file.parent), "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = run_script("-c", code, f"sqlite:///{file}", env=quiet)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(autouse=True)
def database(tmp_path: Path, empty_database: Path) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")


def in_database(tmp_path: Path) -> dict[str, str]:
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}


def rows(folder: Path, query: str) -> list[tuple]:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return database.execute(query).fetchall()


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_run_has_every_value_however_the_script_ends(train, tmp_path, ends):
    train("mlflow", {"run_name": "first"}, env=in_database(tmp_path), ends=ends)
    assert rows(tmp_path, "select key, step, value from metrics order by key, step") == [
        ("accuracy/test", 0, 0.0), ("accuracy/test", 1, 2.5), ("accuracy/test", 2, 5.0),
        ("accuracy/train", 0, 0.0), ("accuracy/train", 1, 1.0), ("accuracy/train", 2, 2.0),
        ("loss", 0, 1.0), ("loss", 1, 0.5), ("loss", 2, 0.25),
    ]  # fmt: skip
    query = "select r.name, e.name, r.status from runs r join experiments e using (experiment_id)"
    assert rows(tmp_path, query) == [("first", "digits", "FINISHED" if ends else "FAILED")]
    assert rows(tmp_path, "select key, value from params order by key") == [
        ("data/name", "digits"), ("layers", "[8, 8]"), ("lr", "0.1"), ("model", "ReLU()"), ("seed", "None"),
    ]  # fmt: skip


def test_artifacts_figures_and_tags_are_kept_and_what_is_no_number_is_named(train, tmp_path):
    printed = train(
        "mlflow",
        {"logging_dir": str(tmp_path / "artifacts"), "tags": '{"team": "blue"}', "description": "a trial"},
        """
        import pathlib, warnings
        folder = pathlib.Path("folder"); folder.mkdir(); (folder / "a.txt").write_text("a")
        tracker.log_artifact("folder/a.txt", "one")
        tracker.log_artifacts("folder")
        from matplotlib.figure import Figure
        tracker.log_figure(Figure(), "plots/empty.png", dpi=20)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tracker.log({"note": "fine", "best": 0.5})
            tracker.log({"note": "fine"})
        print([str(one.message) for one in caught if "skips" in str(one.message)])
        tracker.store_init_configuration({f"p{i}": i for i in range(250)})
        import mlflow
        print("run:", mlflow.active_run().info.run_id == tracker.tracker.info.run_id)
        """,
        env=in_database(tmp_path),
    )
    assert "run: True" in printed
    assert printed.count("skips `note`: its `log` accepts numbers and dicts of numbers, not str") == 1
    assert rows(tmp_path, "select value, step from metrics where key = 'best'") == [(0.5, 0)]
    assert rows(tmp_path, "select count(*) from params where key like 'p%'") == [(250,)]
    tags = dict(rows(tmp_path, "select key, value from tags"))
    assert tags["team"] == "blue"
    assert tags["mlflow.note.content"] == "a trial"
    found = {
        file.relative_to(tmp_path / "artifacts").parts[2:] for file in tmp_path.rglob("artifacts/**/a.txt")
    }
    (picture,) = tmp_path.rglob("artifacts/**/plots/empty.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert found == {("one", "a.txt"), ("a.txt",)}


def test_a_run_can_be_continued(train, tmp_path):
    train("mlflow", {}, env=in_database(tmp_path))
    ((run_id,),) = rows(tmp_path, "select run_uuid from runs")
    train("mlflow", {"run_id": run_id}, "tracker.log({'late': 7}, step=9)", env=in_database(tmp_path))
    assert rows(tmp_path, "select run_uuid from runs") == [(run_id,)]
    assert rows(tmp_path, "select value, step from metrics where key = 'late'") == [(7.0, 9)]


def test_images_figures_and_tables_are_artifacts_of_a_step(train, tmp_path):
    train(
        "mlflow",
        {"logging_dir": str(tmp_path / "artifacts")},
        """
        import pandas
        from matplotlib.figure import Figure
        tracker.log_images({"digits": torch.rand(2, 3, 4, 5)}, step=3)
        tracker.log_figures({"plot": Figure()}, step=4)
        tracker.log_table("words", columns=["word", "count"], data=[["a", 1], ["b", 2]], step=6)
        tracker.log_table("words", dataframe=pandas.DataFrame({"word": ["c"], "count": [3]}), step=6)
        """,
        env=in_database(tmp_path),
    )
    names = {tuple(file.stem.split("+")[:3]) for file in tmp_path.rglob("artifacts/**/images/*.png")}
    assert names == {("digits~0", "step", "3"), ("digits~1", "step", "3"), ("plot", "step", "4")}
    (table,) = tmp_path.rglob("artifacts/**/words_6.json")
    assert json.loads(table.read_text()) == {
        "columns": ["word", "count"], "data": [["a", 1], ["b", 2], ["c", 3]],
    }  # fmt: skip


def test_variables_of_mlflow_win_over_arguments(train, tmp_path):
    given = {
        "MLFLOW_EXPERIMENT_NAME": "letters", "MLFLOW_TAGS": '{"team": "blue"}', "MLFLOW_NESTED_RUN": "true",
    }  # fmt: skip
    before = "import mlflow; mlflow.set_experiment('letters'); parent = mlflow.start_run()"
    train("mlflow", {"tags": {"team": "red"}}, before=before, env=in_database(tmp_path) | given)
    assert rows(tmp_path, "select distinct e.name from runs r join experiments e using (experiment_id)") == [
        ("letters",)
    ]
    tags = dict(rows(tmp_path, "select key, value from tags"))
    assert tags["team"] == "blue"
    assert "mlflow.parentRunId" in tags


@pytest.mark.parametrize("handled", [True, False], ids=["handled", "over"])
def test_a_run_that_is_finished_while_an_exception_is_handled_has_failed(train, tmp_path, handled):
    body = f"""
    log.drain()
    try:
        raise ValueError("training went wrong")
    except ValueError:
        if {handled}:
            tracker.finish()
    """
    train("mlflow", {}, body, env=in_database(tmp_path))
    assert rows(tmp_path, "select status from runs") == [("FAILED" if handled else "FINISHED",)]


def test_artifacts_may_be_the_first_thing_that_is_logged(train, tmp_path):
    calls = (
        "log_artifact('a.txt')",
        "log_artifacts('folder')",
        "log_table('table', columns=['a'], data=[[1]])",
    )
    lines = [f"tracker = MLflowTracker(run_name='run'); tracker.{call}; tracker.finish()" for call in calls]
    files = "import pathlib; pathlib.Path('a.txt').touch(); pathlib.Path('folder').mkdir()"
    before = "\n".join(["from accel_trackers import MLflowTracker", files, *lines])
    train("mlflow", {"run_name": "last"}, before=before, env=in_database(tmp_path))
    query = "select name, status from runs order by start_time"
    assert rows(tmp_path, query) == [*[("run", "FINISHED")] * 3, ("last", "FINISHED")]
