"""Settings: files, bases, changes on the command line, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fate.errors import FateError
from fate.models.zoo import MODELS
from fate.training.config import TrainConfig, list_configs, make_config, read_config
from fate.training.settings import list_settings, settings_table, settings_yaml
from fate.training.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
FILES = [config.file for config in list_configs()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_configuration_is_short_and_right(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 20
    config = read_config(file)
    assert config.model.name in MODELS
    assert config.steps >= 1000


def test_there_is_one_for_every_row_of_the_paper() -> None:
    gen1 = {file.stem for file in FILES if file.parent.name == "gen1"}
    assert gen1 >= {"rvt-b", "get-b", "s5-vit-b", "evrt-detr-b", "evrt-detr-b-frame", "fate-s", "fate-e"}
    assert gen1 >= {"fate-s-20hz", "fate-e-20hz", "s5-vit-b-fat", "evrt-detr-b-fat"}
    ours = {"any_rate"}  # not in the paper
    assert {read_config(f"gen1/{name}").strategy.name for name in gen1} == set(STRATEGIES) - ours
    mpx = {file.stem for file in FILES if file.parent.name == "1mpx"}
    assert mpx >= {"rvt-b", "get-b", "s5-vit-b", "evrt-detr-b", "fate-s", "fate-e"}


def test_the_paper_s_settings_are_the_defaults() -> None:
    config = make_config({"data": {"path": "gen1"}})
    optimiser, strategy, data, run = config.optimiser, config.strategy, config.data, config.run
    assert (optimiser.lr, optimiser.weight_decay, optimiser.warmup, optimiser.clip_norm) == (2e-4, 1e-4, 0.005, 5.0)
    assert (strategy.decay, strategy.rates) == (0.9999, (20, 40, 80, 100, 200))
    assert (data.steps, config.batch_size, run.epochs) == (21, 32, 400)


@pytest.mark.parametrize("dataset", ["gen1", "1mpx"])
def test_public_detectors_are_trained_without_a_mean_of_their_weights_as_published(dataset: str) -> None:
    published = {"rvt-b", "s5-vit-b", "get-b", "evrt-detr-b"}
    decays = {file.stem: read_config(file).strategy.decay for file in FILES if file.parent.name == dataset}
    assert {name for name, decay in decays.items() if decay == 0} == published
    assert decays["evrt-detr-b-frame"] == 0.9999


def test_a_base_is_changed_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {name: fate-e, options: {layers: 3}}\ndata: {path: x, steps: 5}\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\nmodel: {options: {queries: 10}}\ndata: {steps: 7}\n")
    config = read_config(tmp_path / "b.yaml", ["optimiser.lr=1e-3", "strategy.rates=[20, 200]"])
    assert config.model.options == {"layers": 3, "queries": 10}
    assert (config.data.path, config.data.steps) == ("x", 7)
    assert config.optimiser.lr == 1e-3
    assert config.strategy.rates == (20, 200)
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    with pytest.raises(FateError, match="its own base"):
        read_config(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optimizer.lr=1"], "unknown key 'optimizer'.*did you mean 'optimiser'"),
        (["optimiser.learning_rate=1"], "unknown key 'optimiser.learning_rate'"),
        (["run.epohs=3"], "did you mean 'run.epochs'"),
        (["strategy.name=fats"], "strategy.name = 'fats' was given; expected .*fat"),
        (["optimiser.lr=-1"], "optimiser.lr = -1 was given"),
        (["strategy.rates=[40, 20]"], "rising order"),
        (["strategy.name=fat"], "strategy.labels is missing"),
        (["data.random=0", "data.streams=0"], "at least one clip"),
        (["run.validate_hz=[]"], "at least one rate"),
        (["run.devices=3"], "3 processes"),
        (["run.epochs"], "expected key.sub=value"),
        (["run.epochs.x=1"], "run.epochs"),
        (["data.path=[1"], "a value as in YAML"),
    ],
)
def test_mistakes_are_named_with_what_was_expected(overrides: list[str], words: str) -> None:
    with pytest.raises(FateError, match=words):
        make_config({"data": {"path": "x"}}, overrides)


def test_a_missing_dataset_and_files_that_are_none_are_said(tmp_path: Path) -> None:
    with pytest.raises(FateError, match=r"data\.path is missing.*data\.path=VALUE"):
        make_config({})
    with pytest.raises(FateError, match=r"none\.yaml: no such configuration.*--list"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(FateError, match="holds a list"):
        read_config(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    with pytest.raises(FateError, match="not valid YAML"):
        read_config(tmp_path / "broken.yaml")


def test_only_what_changes_training_changes_the_fingerprint() -> None:
    plain = make_config({"data": {"path": "x"}})
    assert (
        make_config({"data": {"path": "x"}}, ["run.log_every=7", "data.workers=0"]).fingerprint() == plain.fingerprint()
    )
    same = ["run.graphs=false", "data.resident_gb=0", "run.validate_every=3", "run.save_every=1", "run.device=cpu"]
    assert make_config({"data": {"path": "x"}}, same).fingerprint() == plain.fingerprint()
    assert make_config({"data": {"path": "x"}}, ["run.seed=1"]).fingerprint() != plain.fingerprint()


def test_bf16_is_for_gpus_unless_it_is_asked_for() -> None:
    plain = make_config({"data": {"path": "x"}})
    assert (plain.halves("cuda"), plain.halves("cpu")) == (True, False)
    asked = [make_config({"data": {"path": "x"}}, [f"run.precision={name}"]) for name in ("bf16", "float32")]
    assert [each.halves(device) for each in asked for device in ("cuda", "cpu")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("optimiser.lr=fast", ["optimiser.lr", "'fast'", "number > 0"]),
        ("optimiser.lr=.inf", ["optimiser.lr", "inf", "number"]),
        ("model=fate-s-nano", ["model", "'fate-s-nano'", "model.name=fate-s-nano"]),
        ("model.options=3", ["model.options", "3", "keys"]),
        ("strategy.rates=[20, x]", ["strategy.rates[1]", "'x'", "≥ 1"]),
        ("run.graphs=maybe", ["run.graphs", "'maybe'", "true or false"]),
        ("run.device=gpu", ["run.device", "'gpu'", "cuda:N"]),
        ("run.epochs=1.5", ["run.epochs", "1.5", "whole number ≥ 1"]),
        ("model.weights=3", ["model.weights", "3", "text or null"]),
    ],
)
def test_a_wrong_value_is_explained_in_plain_words(override: str, facts: list[str]) -> None:
    with pytest.raises(FateError) as caught:
        make_config({"data": {"path": "x"}}, [override])
    text = str(caught.value)
    assert all(fact in text for fact in facts), text
    for word in ("Input", "parse", "valid ", "instance", "Config", "dictionary", "pydantic", "finite"):
        assert word not in text


def test_a_configuration_of_the_package_is_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_name = read_config("fate-s-nano-20hz", ["data.path=drives"])
    assert by_name == read_config("sim/fate-s-nano-20hz", ["data.path=drives"])
    assert by_name.model.name == "fate-s-nano"
    assert read_config("gen1/fate-e").strategy.name == "fat"
    (tmp_path / "mine.yaml").write_text("base: sim/fate-s-nano-20hz\nrun: {epochs: 3}\n")
    mine = read_config("mine.yaml")
    assert (mine.run.epochs, mine.optimiser.lr) == (3, by_name.optimiser.lr)
    (tmp_path / "fate-s-nano-20hz").write_text("data: {path: own}\n")
    assert read_config("fate-s-nano-20hz").data.path == "drives"
    assert read_config("./fate-s-nano-20hz").data.path == "own"


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ("fate-e", ["gen1/fate-e", "1mpx/fate-e"]),
        ("fate-s-nanoo-20hz", ["did you mean sim/fate-s-nano-20hz"]),
        ("gen1/fate", ["did you mean gen1/fate-"]),
        ("configs/sim/fate-s-nano.yaml", ["did you mean sim/fate-s-nano?"]),
        ("nothing-like-it.yaml", ["--list"]),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(given: str, facts: list[str]) -> None:
    with pytest.raises(FateError) as caught:
        read_config(given)
    assert str(caught.value).startswith(f"{given}: ")
    assert all(fact in str(caught.value) for fact in facts)


def test_every_setting_is_listed_with_its_default_and_reason() -> None:
    settings = {setting.key: setting for setting in list_settings(TrainConfig)}
    dumped = make_config({"data": {"path": "x"}}).model_dump(mode="json", by_alias=True)
    assert settings.keys() == {f"{section}.{name}" for section, content in dumped.items() for name in content}
    assert all(len(setting.meaning) > 10 and setting.kind for setting in settings.values())
    assert [key for key, setting in settings.items() if setting.required] == ["data.path"]


def test_the_listed_settings_are_a_configuration_themselves(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(settings_yaml(TrainConfig))
    assert read_config(tmp_path / "mine.yaml", ["data.path=x"]) == make_config({"data": {"path": "x"}})
    other = read_config("fate-s-nano-20hz")
    (tmp_path / "other.yaml").write_text(settings_yaml(TrainConfig, other))
    assert read_config(tmp_path / "other.yaml") == other


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    table = settings_table(TrainConfig)
    assert table in page, f"docs/reference/settings.md is out of date; replace its tables by\n{table}"


def test_one_gpu_can_be_named_for_one_process_only() -> None:
    assert make_config({"data": {"path": "x"}}, ["run.device=cuda:1"]).run.gpu == 1
    assert make_config({"data": {"path": "x"}}, ["run.device=cuda"]).run.gpu is None
    with pytest.raises(FateError, match="cuda:1.*2 processes"):
        make_config({"data": {"path": "x"}}, ["run.device=cuda:1", "run.devices=2"])
