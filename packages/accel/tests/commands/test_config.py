from accel.commands import config


def test_the_default_config_file_is_the_one_that_exists_or_would_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    folder = tmp_path / "accelerate"
    assert config.default_config_file == str(folder / "default_config.yaml")
    folder.mkdir()
    (folder / "default_config.json").write_text("{}")
    assert config.default_config_file == str(folder / "default_config.json")
