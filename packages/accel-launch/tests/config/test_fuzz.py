"""Random config files, broken and hostile ones among them: a plan or a clear error, never a traceback."""

from __future__ import annotations

import ast
import json
import random
from collections import Counter
from pathlib import Path

import pytest
import yaml

import accel_launch
from accel_launch.config.file import PLAIN_KEYS, SECTIONS, ConfigFile, read_config
from accel_launch.config.show import as_text, rows_of
from accel_launch.config.writing import document_of, write_config
from accel_launch.launchers.selection import select_launcher
from accel_launch.options import OPTIONS
from accel_launch.unused_settings import unused_settings
from accel_state.errors import AccelError, ConfigError

WORDS = [
    *(None, True, False, 0, 1, 2, 4, -1, 10**30, 1.5, float("nan"), float("inf")),
    *(
        "",
        "no",
        "NO",
        "yes",
        "bf16",
        "fp8",
        "FSDP",
        "DEEPSPEED",
        "MULTI_GPU",
        "MULTI_CPU",
        "XLA",
        "AMAZON_SAGEMAKER",
    ),
    *(
        "LOCAL_MACHINE",
        "static",
        "c10d",
        "all",
        "0,1",
        "a b",
        "$(touch x)",
        "`id`",
        "; rm -rf /",
        "é",
        "\n",
        "-",
        "--",
    ),
    *(
        [],
        ["a"],
        [1, None],
        {},
        {"a": 1},
        [[["x"]]],
        "true,false,true",
        "INDUCTOR",
        "none",
        "auto",
        "10.0.0.1",
    ),
]
CLEAR = {"plan", "ConfigError", "LaunchError", "NotAvailableError", "UnknownNameError"}
HOSTILE = [
    "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\ncommands: [*b,*b,*b,*b,*b,*b]\n",
    "x0: &a [1,1,1,1,1,1,1,1,1,1]\nfsdp_config: [*a, *a]\n",
    "additional_args: &a {b: *a}\n",
    "commands: &a [*a]\n",
    "!!python/object/apply:os.system ['touch hacked']\n",
    "commands: !!python/object/new:subprocess.Popen [['touch', 'hacked']]\n",
    "num_processes: " + "9" * 5000 + "\n",
    "base_job_name: 2024-99-99\n",
    "commands: " + "[" * 600 + "]" * 600 + "\n",
    "{" * 600,
    "? [a, b]\n: c\n",
    "? {a: 1}\n: c\n",
    "<<: 3\n",
    "<<: *none\n",
    "=: 1\n",
    "num_processes: 1\nnum_processes: 2\n",
    'main_process_ip: "\\0"\n',
    'main_process_ip: "\\ud800"\n',
    '"\\ud800": 1\n',
    "%YAML 9.9\n---\na: 1\n",
    "--- 1\n--- 2\n",
    "\tnum_processes: 1\n",
    "\ufeffnum_processes: 1\n",
    "num_processes: !!binary aGVsbG8=\n",
    "tpu_vm: !!set {a, b}\n",
    "num_processes: 0x2\n",
    "num_processes: 1:30\n",
    "null: 1\n",
    "commands: [null]\n",
]


def random_document(chance: random.Random) -> object:
    document: dict[object, object] = {}
    for _ in range(chance.randrange(12)):
        if chance.random() < 0.4:
            section = chance.choice(sorted(SECTIONS))
            keys = sorted(SECTIONS[section])
            content = {chance.choice(keys): sensible(chance) for _ in range(chance.randrange(4))}
            document[section] = content if chance.random() < 0.9 else chance.choice(WORDS)
        else:
            document[chance.choice(sorted(PLAIN_KEYS))] = sensible(chance)
    if chance.random() < 0.1:
        document[chance.choice([1, None, "nmu_processes", "", "é"])] = 1
    return document


def sensible(chance: random.Random) -> object:
    """A value that some setting accepts, more often than not, so that many files get as far as a plan."""
    setting = chance.choice(OPTIONS)
    if chance.random() < 0.5 and setting.choices:
        return chance.choice(setting.choices)
    return chance.choice(WORDS)


def random_text(chance: random.Random) -> tuple[str, str]:
    if chance.random() < 0.03:
        return "c.yaml", chance.choice([text for text in HOSTILE if len(text) < 5000])
    document = random_document(chance)
    as_json = chance.random() < 0.3
    text = json.dumps(document) if as_json else yaml.safe_dump(document, allow_unicode=True)
    if chance.random() < 0.3:
        place = chance.randrange(len(text) + 1)
        text = (
            text[:place]
            + chance.choice(["", ":", "[", "\0", "'", "&a ", "*a", "\n  - ", "{"])
            + text[place + 1 :]
        )
    return ("c.json" if as_json else "c.yaml"), text


def outcome_of(path: Path, request_for) -> str:
    """Take a file as far as it goes; anything but a plan or an error of ours is an exception."""
    try:
        config = read_config(path)
        as_text(rows_of(flags={}, environ={}, config=config), config=config, is_all=True)
        request = request_for(config=config.values)
        unused_settings(request)
        write_config(path.with_name("again.yaml"), document_of(config.values))
        if request.num_processes < 100:
            json.dumps(select_launcher(request).plan(request).to_dict())
        return "plan"
    except AccelError as error:
        is_clear = 0 < len(str(error).strip()) < 2000
        return type(error).__name__ if is_clear else f"unclear: {error!r}"


def run_files(number: int, *, seed: int, folder: Path, request_for) -> Counter[str]:
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(number):
        name, text = random_text(chance)
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        outcomes[outcome_of(path, request_for)] += 1
    return outcomes


def test_random_files_give_a_plan_or_a_clear_error(tmp_path, request_for):
    outcomes = run_files(500, seed=1, folder=tmp_path, request_for=request_for)
    assert outcomes["plan"] > 20  # else nothing but the reader was tried
    assert outcomes["ConfigError"] > 100
    assert set(outcomes) <= CLEAR


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_do_nothing(tmp_path, monkeypatch, request_for, text):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    outcome_of(path, request_for)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commands: " + "[" * 600 + "]" * 600 + "\n", "nested too deeply"),
        ("num_processes: " + "9" * 5000 + "\n", "is not valid YAML"),
        ("num_processes: [1, 2]\n", "`num_processes` in the config file .* cannot be used: .* holds a list"),
    ],
)
def test_what_only_looks_like_a_config_file_is_refused(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "num_processes: 1\ndebug: false\nnum_processes: 2\n"),
        ("c.json", '{"num_processes": 1, "num_processes": 2}'),
    ],
)
def test_of_a_duplicate_key_the_last_counts_with_a_warning(tmp_path, capsys, name, text):
    """Files of older releases have some."""
    (tmp_path / name).write_text(text)
    assert read_config(tmp_path / name).values["num_processes"] == 2
    warning = "has the key `num_processes` twice; the last counts."
    assert capsys.readouterr().err == (
        f"warning: The config file `{tmp_path / name}` {warning} Remove the others.\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "fsdp_config: {fsdp_version: 1, fsdp_version: 2}\n"),
        ("c.json", '{"fsdp_config": {"fsdp_version": 1, "fsdp_version": 2}}'),
    ],
)
def test_a_key_twice_in_a_section_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="a section has the key `fsdp_version` twice. Correct it there"):
        read_config(tmp_path / name)


def test_a_key_that_is_merged_in_may_be_given_again(tmp_path, capsys):
    text = "fsdp_config:\n  <<: {fsdp_version: 1}\n  fsdp_version: 2\n"
    (tmp_path / "c.yaml").write_text(text)
    assert read_config(tmp_path / "c.yaml").values == {"fsdp_config.fsdp_version": 2}
    assert capsys.readouterr().err == ""


def test_no_shell_is_involved():
    """Words from a file are arguments of programs, never text for a shell."""
    shells = []
    for source in Path(accel_launch.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                shells.append(source.name)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.system", "os.popen"):
                shells.append(source.name)
    assert shells == []


def test_an_empty_config_is_a_plan(request_for):
    assert select_launcher(request_for(config=ConfigFile().values)).plan(request_for()).num_ranks == 1
