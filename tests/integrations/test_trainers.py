"""The parts in other people's trainers: the examples run, train, and treat the head as they should.

These libraries belong to the extra `integrations`, not to development: `nox -s integrations` installs and runs them.
"""

from __future__ import annotations

import importlib
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from unhinge.nn import ETFHead, replace_head

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def example(name: str, *packages: str) -> SimpleNamespace:
    """The names of an example; skipped with the reason where one of its packages is absent or broken."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            pytest.skip(f'{error}: pip install "unhinge[integrations]"')
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name))


def accuracy_said(text: str) -> float:
    words = text.split()
    return float(words[words.index("accuracy") + 1].rstrip(";"))


def test_the_table_names_every_example():
    listed = {
        line.split("](")[1].split(")")[0]
        for line in (EXAMPLES / "README.md").read_text().splitlines()
        if ".py](" in line
    }
    assert listed == {path.name for path in EXAMPLES.glob("*.py")}


def test_hugging_face_trains_the_body_and_leaves_the_prototypes(capsys):
    script = example("huggingface_trainer", "transformers", "accelerate")
    trainer = script.main()
    head = trainer.model.classifier
    assert isinstance(head, ETFHead)
    fresh = ETFHead(32, 4, scale=8.0)
    torch.testing.assert_close(head.weight @ head.weight.T, fresh.weight @ fresh.weight.T, rtol=0, atol=1e-4)
    assert accuracy_said(capsys.readouterr().out) > 0.9
    outputs = trainer.model(**{key: value[None] for key, value in script.sentences(1, 2)[0].items()})
    assert outputs.logits.shape == (1, 4)


def test_hugging_face_sums_over_accumulated_batches_as_one_batch(monkeypatch):
    """compute_loss_func gets the number of examples of the whole step: two half batches give one batch's loss."""
    script = example("huggingface_trainer", "transformers", "accelerate")
    logits, labels = torch.randn(8, 4), torch.randint(4, (8,))
    whole = script.loss_of({"logits": logits}, labels)
    halves = [
        script.loss_of({"logits": logits[part]}, labels[part], torch.tensor(8)) for part in (slice(4), slice(4, 8))
    ]
    torch.testing.assert_close(halves[0] + halves[1], whole)


def test_accelerate_trains_with_a_fixed_head(capsys):
    model = example("accelerate_loop", "accelerate").main()
    assert list(dict(model[1].named_parameters())) == []
    assert accuracy_said(capsys.readouterr().out) > 0.9


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers
def test_lightning_trains_and_logs_collapse(capsys):
    trainer = example("lightning_module", "lightning").main()
    actual = trainer.callback_metrics
    assert actual["accuracy"] > 0.9
    assert 0 < actual["val/nc1_ratio"] < 1
    assert actual["val/nc2_etf_weight"] < 1e-6
    capsys.readouterr()


def test_skorch_chooses_gamma_in_a_pipeline(capsys):
    search = example("skorch_pipeline", "skorch", "sklearn").main()
    assert len(search.cv_results_["params"]) == 3
    assert accuracy_said(capsys.readouterr().out) > 0.9


def test_a_classifier_is_saved_and_loaded_with_gamma_radius_and_prototypes(tmp_path, capsys):
    script = example("hub_model", "huggingface_hub", "safetensors")
    model, again = script.main(str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "dim": 16,
        "num_classes": 10,
        "gamma": 0.2,
        "radius": 4.0,
    }
    assert torch.equal(model.head.weight, again.head.weight)
    assert again.loss.gamma == 0.2
    assert again.head.scale == 4.0
    # The sum of the rows is no part of the file; it must follow the loaded rows, also where they are no frame.
    with torch.no_grad():
        model.head.weight.add_(1.0)
    model.save_pretrained(tmp_path / "shifted")
    loaded = script.Classifier.from_pretrained(tmp_path / "shifted")
    torch.testing.assert_close(loaded.head.weight_sum, model.head.weight.sum(0))


def test_timm_models_take_a_head():
    try:
        timm = importlib.import_module("timm")
    except ImportError as error:  # it asks for a torchvision that fits this torch
        pytest.skip(f"timm cannot be imported: {error}")
    model = timm.create_model("resnet10t", num_classes=4).eval()
    replace_head(model, ETFHead, name="fc")
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 4)
