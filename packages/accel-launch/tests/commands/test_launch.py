"""The command without starting anything: flags in, plan or refusal out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.options import OPTIONS, TOPICS


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ACCELERATE_MIXED_PRECISION", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.fixture
def planned(capsys):
    def plan(*arguments: str) -> dict:
        assert main(["launch", "--dry-run", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return plan


@pytest.mark.parametrize(
    "script_arguments",
    [
        ["--num_processes", "3"],
        ["--cpu", "-h", "--help", "--dry-run"],
        ["--", "-m", "--", "x"],
        ["--config_file=mine.yaml", "-q"],
        ["", "a b", "-1", "é", "--num_processes"],
        ["launch", "--json"],
    ],
)
@pytest.mark.parametrize("flags", [["--cpu"], ["--cpu", "--num_processes", "2"], ["--cpu", "--"]])
def test_what_follows_the_script_is_the_scripts_untouched(planned, flags, script_arguments):
    plan = planned(*flags, "train.py", *script_arguments)
    for process in plan["processes"]:
        assert process["argv"][-len(script_arguments) - 1 :] == ["train.py", *script_arguments]
        assert process["environ"]["ACCELERATE_USE_CPU"] == "true"
    assert plan["num_ranks"] == (2 if "2" in flags else 1)


def test_a_module_and_a_program(planned):
    assert planned("--cpu", "-m", "pkg.train", "-m")["processes"][0]["argv"][-3:] == ["-m", "pkg.train", "-m"]
    assert planned("--cpu", "--no_python", "bash", "-c", "true")["processes"][0]["argv"] == [
        "bash",
        "-c",
        "true",
    ]


def test_flag_before_variable_before_file(planned, workplace, monkeypatch):
    file = workplace / "hf_home" / "accelerate" / "default_config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("mixed_precision: fp16\nuse_cpu: true\n")
    seen = []
    for arguments in ([], ["--mixed_precision", "no"]):
        seen.append(planned(*arguments, "train.py")["processes"][0]["environ"]["ACCELERATE_MIXED_PRECISION"])
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        seen.append(planned(*arguments, "train.py")["processes"][0]["environ"]["ACCELERATE_MIXED_PRECISION"])
    assert seen == ["fp16", "bf16", "no", "no"]


def test_dry_run_shows_people_what_would_start(workplace, capsys):
    assert main(["launch", "--cpu", "--num_processes", "2", "--dry-run", "train.py"]) == 0
    text = capsys.readouterr().out
    assert "launcher     local" in text
    assert f"directory    {workplace}" in text
    assert text.count("variable     ACCELERATE_USE_CPU=true") >= 1


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ([], 2, "there is nothing to launch"),
        (["--cpu", "--"], 2, "there is nothing to launch"),
        (["--json", "train.py"], 2, "`--json` goes with `--dry-run` only"),
        (["-m", "--no_python", "train.py"], 2, "not allowed with"),
        (
            ["--num_proces", "2", "train.py"],
            2,
            "unknown option `--num_proces`. Did you mean `--num_processes`?",
        ),
        (["--cp", "train.py"], 2, "unknown option `--cp`. Did you mean `--cpu`?"),
        (["tarin.py"], 1, "error: The script `tarin.py` does not exist in"),
        (["/"], 1, "error: The script `/` is a folder without a `__main__.py`."),
        (
            ["--config_file", "no.yaml", "train.py"],
            1,
            "error: The config file `no.yaml` does not exist. Make it with",
        ),
        (["--cpu", "--report", "no/r.json", "train.py"], 1, "error: The folder of `--report "),
        (
            ["--cpu", "--num_processes", "2", "--show_ranks", "0,5", "train.py"],
            1,
            "error: `--show_ranks` names rank 5, but the ranks of this run go from 0 to 1.",
        ),
        (["--rdzv_conf", "timeout", "train.py"], 1, "but it must be `KEY=VALUE`, or several"),
        (["--hosts", "a", "--ssh_options=-i 'key", "train.py"], 1, "with each quote closed"),
        (["--cpu", "--multi_gpu", "train.py"], 1, "error: `--cpu` and `--multi_gpu` contradict each other."),
        (
            ["--cpu", "--tee", "9", "train.py"],
            1,
            "error: `--tee` is `9`, but it must be 0, 1, 2 or 3, or such",
        ),
        (
            ["--cpu", "--grace_period_s", "-1", "train.py"],
            1,
            "error: `--grace_period_s` is `-1`, but it must be a",
        ),
        (
            ["--mixed_precision", "fp61", "train.py"],
            1,
            "Did you mean `fp16`?",
        ),
        (
            ["--num_processes", "two", "train.py"],
            1,
            "`--num_processes` is `two`, but it must be a whole number",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(capsys, arguments, exit_code, message):
    assert main(["launch", *arguments]) == exit_code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) == (1 if exit_code == 1 else 2)  # usage comes with its own line


def test_what_has_no_effect_is_named_once(workplace, capsys):
    (workplace / "c.yaml").write_text("tpu_zone: europe\ntpu_use_sudo: false\nuse_cpu: true\n")
    assert main(["launch", "--config_file", "c.yaml", "--zero-stage", "3", "--dry-run", "train.py"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "warning: `--zero_stage` has no effect without `--use_deepspeed`.",
        "warning: `tpu_zone` in `c.yaml` has no effect without `--tpu`.",
    ]


@pytest.fixture
def helped(capsys):
    def show(*topic: str) -> str:
        assert main(["launch", "--help", *topic]) == 0
        return capsys.readouterr().out

    return show


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w(?: \S+)?, )?(--\w[\w-]*)", text, re.MULTILINE))


def test_the_help_shows_what_most_people_need_and_the_topics(helped):
    text = helped()
    assert text.startswith("usage: accel launch [options] SCRIPT [arguments of the script]\n")
    assert flags_in(text) >= {setting.flag for setting in OPTIONS if setting.launch.is_common} | {
        "--config_file"
    }
    assert len(text.splitlines()) <= 48
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "accel launch --num_processes 2 --cpu train.py" in text
    listed = " ".join(text.partition("by topic")[2].split())
    assert all(f" {topic}," in listed for topic in TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_help_of_a_topic_shows_its_flags_and_no_others(helped, topic):
    assert flags_in(helped(topic)) == {setting.flag for setting in TOPICS[topic].settings if setting.flag}


def test_the_help_of_an_engine_names_what_switches_it_on(helped):
    assert helped("fsdp").endswith("They have no effect without `--use_fsdp`.\n")
    assert helped("ray").endswith("They have no effect without `--launcher ray`.\n")


def test_the_help_of_all_topics_is_grouped_and_ends_with_examples(helped):
    text = helped("all")
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["options:", *(f"{topic.heading}:" for topic in TOPICS.values()), "examples:"]
    assert max(len(line) for line in text.splitlines()) <= 100


def test_an_unknown_topic_is_refused_with_those_there_are(capsys):
    assert main(["launch", "--help", "fsdpp"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "unknown topic `fsdpp`. Known: launcher, hardware, " in captured.err
    assert "Did you mean `fsdp`?" in captured.err


NO_GPU = "asks for GPUs, but none is found on this machine: everything runs on its CPU."


@pytest.mark.parametrize("num_processes", ["1", "3"])
@pytest.mark.parametrize(
    ("flags", "config", "asked"),
    [
        (["--multi_gpu"], "", "`--multi_gpu`"),
        ([], "distributed_type: MULTI_GPU\n", "`distributed_type: MULTI_GPU`"),
        ([], "distributed_type: MULTI_XPU\n", "`distributed_type: MULTI_XPU`"),
    ],
)
def test_gpus_that_are_requested_and_not_found_are_a_warning(
    workplace, monkeypatch, capsys, num_processes, flags, config, asked
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (workplace / "c.yaml").write_text(config)
    launch = ["launch", "--dry-run", "--config_file", "c.yaml", "--num_processes", num_processes, *flags]
    assert main([*launch, "train.py"]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {asked} {NO_GPU} Look at the driver")
    for other in [] if flags else ["--cpu", "--use_fsdp"]:  # flags come before the file
        assert main([*launch, other, "train.py"]) == 0
        assert NO_GPU not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        (["--multi_gpu"], "--multi_gpu"),
        (["--gpu_ids", "all"], "--gpu_ids"),
        (["--gpu_ids", "0,1"], "--gpu_ids"),
        (["--config_file", "c.yaml"], "gpu_ids: 0,1"),
    ],
)
def test_gpus_that_are_named_and_not_found_start_nothing(workplace, monkeypatch, capfd, flags, asked):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (workplace / "train.py").write_text("print('trained')\n")
    (workplace / "c.yaml").write_text("gpu_ids: 0,1\n")
    assert main(["launch", *flags, "train.py"]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: `{asked}` asks for GPUs, but none is found on this machine, and")


def test_gpus_of_other_machines_are_named_where_there_are_none(planned, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    plan = planned("--slurm", "--gpu_ids", "0,1", "train.py")
    assert "--gpu_ids=0,1" in plan["options"]["script"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            ["--num_processes", "2", "--nproc_per_node", "3"],
            "`--nproc_per_node` and `--num_processes` contra",
        ),
        (["--rdzv_endpoint", "host"], "`--rdzv_endpoint` is `host`, but it must be `ADDRESS:PORT`."),
        (["--standalone", "--nnodes", "2"], "`--standalone` is for one machine."),
    ],
)
def test_flags_of_torchrun_that_contradict_others_are_refused(workplace, capsys, flags, problem):
    assert main(["launch", "--cpu", "--dry-run", *flags, "train.py"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {problem}")


def test_a_command_line_of_torchrun_is_understood(planned):
    words = "--nnodes 2 --nproc-per-node 3 --node-rank 1 --rdzv-endpoint h:29501 --max-restarts 1"
    plan = planned("--cpu", *words.split(), "train.py")
    (agent,) = plan["processes"]
    given = {
        "--nnodes=2",
        "--nproc_per_node=3",
        "--rdzv_conf=rank=1",
        "--rdzv_endpoint=h:29501",
        "--max_restarts=1",
    }
    assert (plan["num_ranks"], plan["launcher"], given - {*agent["argv"]}) == (6, "elastic", set())
    plan = planned("--cpu", "--standalone", "--nproc_per_node", "auto", "train.py")
    assert (plan["num_ranks"], plan["port"]) == (1, None)
    plan = planned(
        "--cpu", "--nproc_per_node=2", "--master_addr=127.0.0.1", "--master_port=29502", "train.py"
    )
    assert (plan["num_ranks"], plan["port"]) == (2, 29502)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--prefix"], ["[rank0] from 0", "[rank1] from 1"]),
        (["--show_ranks", "1"], ["from 1"]),
        (["--show_ranks", "0", "--prefix"], ["[rank0] from 0"]),
        (["--log_dir", "logs", "--prefix"], ["[rank0] from 0", "[rank1] from 1"]),
    ],
)
def test_the_screen_shows_which_rank_wrote_a_line_and_only_those_of_interest(workplace, capfd, flags, shown):
    (workplace / "train.py").write_text("import os; print('from', os.environ['RANK'])")
    assert main(["launch", "--cpu", "--num_processes", "2", *flags, "train.py"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == shown


def test_the_report_has_the_last_lines_of_a_rank_that_is_not_shown(workplace, capfd):
    (workplace / "train.py").write_text("import os; assert os.environ['RANK'] == '0', 'rank 1 is wrong'")
    flags = ["--cpu", "--num_processes", "2", "--show_ranks", "0"]
    assert main(["launch", *flags, "train.py"]) == 1
    said = capfd.readouterr().err
    assert said.startswith("error: Rank 1 on")  # nothing was shown before
    assert "    | AssertionError: rank 1 is wrong" in said


@pytest.mark.parametrize("size", ["dp_shard", "dp_replicate", "tp", "pp", "ep", "cp", "sp"])
def test_a_size_of_an_axis_builds_the_mesh(planned, capsys, size):
    flags = ("--cpu", "--num_processes", "2", f"--parallelism_config_{size}_size", "2", "train.py")
    environ = planned(*flags)["processes"][0]["environ"]
    assert environ["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"
    assert environ[f"PARALLELISM_CONFIG_{size.upper()}_SIZE"] == "2"
    assert main(["launch", "--dry-run", *flags]) == 0
    assert capsys.readouterr().err == ""


def test_experts_are_sharded_by_a_key_of_the_config_file(workplace, planned):
    (workplace / "c.yaml").write_text("parallelism_config:\n  parallelism_config_ep_size: 2\n")
    environ = planned("--config_file", "c.yaml", "--cpu", "train.py")["processes"][0]["environ"]
    assert environ["PARALLELISM_CONFIG_EP_SIZE"] == "2"
    assert environ["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"
