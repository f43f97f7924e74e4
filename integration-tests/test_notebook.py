"""A notebook that trains with `notebook_launcher`, executed cell by cell by a real kernel."""

import json
import os
import sys
import textwrap

import pytest

nbclient = pytest.importorskip("nbclient", reason="`nbclient` is not installed")
nbformat = pytest.importorskip("nbformat", reason="`nbformat` is not installed")
pytest.importorskip("ipykernel", reason="`ipykernel` is not installed")

pytestmark = pytest.mark.engine("long")

CELLS = {
    "define": """
        import json, os
        from pathlib import Path
        import torch
        from accel import Accelerator, debug_launcher, notebook_launcher
        samples = torch.arange(16.0).reshape(16, 1)  # what the notebook has made is there in the processes

        def train(name, num_steps):
            accelerator = Accelerator()
            torch.manual_seed(0)
            model = torch.nn.Linear(1, 1)
            loader = torch.utils.data.DataLoader(samples, batch_size=4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            seen = []
            for _, batch in zip(range(num_steps), loader):
                accelerator.backward(model(batch).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()
                seen += batch.flatten().tolist()
            told = {"rank": accelerator.process_index, "of": accelerator.num_processes, "seen": seen,
                    "weight": accelerator.unwrap_model(model).weight.item()}
            Path(f"{name}-{accelerator.process_index}.json").write_text(json.dumps(told))
            print(f"trained on {accelerator.num_processes} processes", flush=True)
            accelerator.end_training()
    """,
    "launch": "notebook_launcher(train, ('two', 2), num_processes=2, use_port=0)",
    "again": "debug_launcher(train, ('again', 1))",
    "fail": """
        def fail():
            accelerator = Accelerator()
            if accelerator.process_index == 1:
                raise FloatingPointError("loss is nan")
            accelerator.wait_for_everyone()

        notebook_launcher(fail, num_processes=2, use_port=0)
    """,
    "interrupt": """
        import signal, sys, time
        kernel = os.getpid()
        def hang():
            print("started", flush=True)
            if os.environ["RANK"] == "0":
                os.kill(kernel, signal.SIGINT)
            time.sleep(60)

        notebook_launcher(hang, num_processes=2, use_port=0, log_line_prefix_template="[${rank}] ")
    """,
    "thread": """
        import threading
        def write():
            print("to stdout")
            print("to stderr", file=sys.stderr)

        launch = threading.Thread(target=notebook_launcher, args=(write,), kwargs={"num_processes": 2, "use_port": 0})
        launch.start()
        launch.join()
    """,
    "kernel lives": "print('still', 6 * 7)",
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return the cells with their outputs, by name, and the folder in which they were executed."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(textwrap.dedent(text).strip()) for text in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    kernel = folder / "kernels" / "here"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "here", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    variables = {"JUPYTER_PATH": str(folder), "IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="here",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            patch.delenv(name)
        client.execute()
    return dict(zip(CELLS, notebook.cells, strict=True)), folder


def text_of(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def errors_of(cell):
    return [output for output in cell.outputs if output.output_type == "error"]


def told(folder, name):
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_train_one_model_on_different_samples(executed):
    cells, folder = executed
    assert errors_of(cells["launch"]) == []
    first, second = told(folder, "two")
    assert [first["of"], second["of"]] == [2, 2]
    assert sorted(first["seen"] + second["seen"]) == list(range(16))
    assert first["weight"] == second["weight"]
    assert text_of(cells["launch"]).count("trained on 2 processes") == 2


def test_a_second_launch_from_the_same_kernel_works(executed):
    cells, folder = executed
    assert errors_of(cells["again"]) == []
    assert {state["of"] for state in told(folder, "again")} == {2}


def test_the_cell_names_which_rank_failed_first_and_the_kernel_lives_on(executed):
    cells, _ = executed
    (error,) = errors_of(cells["fail"])
    assert error.ename == "RanksFailedError"
    assert error.evalue.startswith("Rank 1 failed first: FloatingPointError: loss is nan (")
    assert " in fail)." in error.evalue.splitlines()[0]
    assert text_of(cells["kernel lives"]) == "still 42\n"


def test_an_interrupt_of_the_kernel_ends_the_processes(executed):
    cells, _ = executed
    (error,) = errors_of(cells["interrupt"])
    assert error.ename == "KeyboardInterrupt"
    assert "[0] started\n" in text_of(cells["interrupt"])


def test_what_processes_write_stands_in_the_cell_also_from_a_thread(executed):
    cells, _ = executed
    assert errors_of(cells["thread"]) == []
    for stream in ("stdout", "stderr"):
        written = [output.text for output in cells["thread"].outputs if output.name == stream]
        assert "".join(written) == f"to {stream}\n" * 2
