from accel_launch.commands.deepspeed import prepare_deepspeed_cmd_env
from accel_launch.commands.parsing import launch_command_parser

SEVERAL = ["--num_machines", "2", "--num_processes", "4", "--deepspeed_hostfile", "hosts"]


def prepared(monkeypatch, tmp_path, *flags):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return prepare_deepspeed_cmd_env(launch_command_parser().parse_args([*flags, "train.py", "--lr", "1"]))


def test_on_one_machine_the_command_is_that_of_rank_0(monkeypatch, tmp_path):
    command, environ = prepared(monkeypatch, tmp_path, "--cpu", "--num_processes", "2", "--zero_stage", "3")
    assert command[-3:] == ["train.py", "--lr", "1"]
    assert environ["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert (environ["RANK"], environ["WORLD_SIZE"]) == ("0", "2")
    assert environ["HF_HOME"] == str(tmp_path / "hf")


def test_on_several_machines_it_is_deepspeeds_runner(monkeypatch, tmp_path):
    command, environ = prepared(monkeypatch, tmp_path, *SEVERAL)
    assert "deepspeed.launcher.runner" in command
    assert "--num_nodes=2" in command
    assert environ["ACCELERATE_USE_DEEPSPEED"] == "true"
