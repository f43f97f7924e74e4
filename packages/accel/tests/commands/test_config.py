from accel.commands import config
from accel.commands.config import config_args, objects


def test_the_default_config_file_is_the_one_that_exists_or_would_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    folder = tmp_path / "accelerate"
    assert config.default_config_file == str(folder / "default_config.yaml")
    folder.mkdir()
    (folder / "default_config.json").write_text("{}")
    assert config.default_config_file == str(folder / "default_config.json")


def test_settings_of_a_config_file_are_where_scripts_import_them_from(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert config_args.default_config_file == config.default_config_file
    assert config_args.ClusterConfig is objects.ClusterConfig
