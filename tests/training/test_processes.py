"""Two processes train what one process trains; they write once; a wrong request is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from unhinge.training import Recipe, fit, processes
from unhinge.training.checkpoint import read_tensors
from unhinge.training.parallel import SingleProcess
from unhinge.training.records import read_records
from unhinge.training.shared_norm import SharedBatchNorm2d, share_batch_norm

TINY = Recipe(width=4, epochs=2, batch=32, lr=0.05)
RECIPES = {
    "cross-entropy": TINY,
    "class weights, smoothing": replace(TINY, class_weight=0.5, label_smoothing=0.1, logit_adjustment=1.0),
    "radius, class weights": replace(TINY, loss="unhinged", head="pal", radius=5.0, class_weight=0.5),
    "normalized, rescaled": replace(TINY, loss="unhinged", head="fnpal", rescale=True, feature_penalty=1e-3),
    "adjusted": replace(TINY, loss="adjusted", head="fnpal", feature_penalty=1e-4),
    # 203 images: the last batch has one, and the second process none
    "a process without images": replace(TINY, batch=101, class_weight=0.5),
    "interrupted": replace(TINY, epochs=4),
    "residual": replace(TINY, model="resnet8", epochs=1, batch=101),
    "blown up": replace(TINY, loss="unhinged", lr=1e38, epochs=3),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    pytest.importorskip("lightning_fabric", reason="several processes are Lightning Fabric's part")
    folder = tmp_path_factory.mktemp("shared")
    (folder / "recipes.json").write_text(json.dumps({name: asdict(recipe) for name, recipe in RECIPES.items()}))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("shared.py")), str(folder), str(folder / "recipes.json")],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(one["name"], one["count"]) for one in told] == [(name, 2) for name in RECIPES]  # once each, by one of two
    return folder


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "blown up"])
def test_two_processes_train_what_one_trains(shared, tmp_path, few, name):
    """In float64, up to the rounding of sums in another order, grown over some dozen steps."""
    alone = fit(RECIPES[name], tmp_path, material=few, processes=processes(precision="64-true"))
    one, two = (read_tensors(folder / "last.safetensors").tensors for folder in (tmp_path, shared / name))
    assert one.keys() == two.keys()
    for key in one:
        assert two[key].dtype == one[key].dtype
        torch.testing.assert_close(two[key], one[key], rtol=1e-8, atol=1e-10)
    records = read_records(shared / name)
    assert len(records) == RECIPES[name].epochs
    for mine, theirs in zip(alone.records, records, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert theirs[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_two_processes_stop_together_where_the_loss_blows_up(shared):
    records = read_records(shared / "blown up")
    assert "not finite" in records[-1]["stopped"]


def test_logs_are_written_once(shared):
    assert len((shared / "cross-entropy" / "times.jsonl").read_text().splitlines()) == 2
    assert not list(shared.rglob("*.partial"))


def test_the_command_runs_on_two_processes_of_the_cpu(tmp_path):
    pytest.importorskip("lightning_fabric", reason="several processes are Lightning Fabric's part")
    shared = ("--devices", "2", "--strategy", "ddp", "--accelerator", "cpu")
    script = tmp_path / "command.py"  # a file, because the second process runs it again
    script.write_text("from unhinge.cli import main\n\nmain()\n")
    done = subprocess.run(
        [sys.executable, str(script), "train", *shared, "--epochs=1", "--width=4", "--json", f"--out={tmp_path}/run"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    actual = json.loads(done.stdout)  # one value, of one process
    assert [record["epoch"] for record in actual["records"]] == [1]
    assert done.stderr.count("test accuracy") == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_whose_partner_is_gone_before_they_met_ends_and_says_so(tmp_path, rank):
    """As after a kill: the other process of the two never comes to the meeting place."""
    pytest.importorskip("lightning_fabric", reason="several processes are Lightning Fabric's part")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "command.py"
    script.write_text(
        "from unhinge.training import parallel\n\nparallel.MEETING = 2.0\nfrom unhinge.cli import main\n\nmain()\n"
    )
    place = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "TORCHELASTIC_RUN_ID": "alone"}  # as torchrun's
    shared = ("--devices", "2", "--strategy", "ddp", "--accelerator", "cpu")
    done = subprocess.run(
        [sys.executable, str(script), "train", *shared, "--epochs=1", "--width=4", f"--out={tmp_path}/run"],
        capture_output=True,
        text=True,
        timeout=300,  # not a measure of speed: without an end of its own it waits for half an hour
        env=os.environ | {"OMP_NUM_THREADS": "1"} | place,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "did not meet within 2 seconds" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr  # no stack, neither of Python nor of torch
    assert not list((tmp_path / "run").glob("*"))


def test_processes_that_met_wait_for_each_other_as_long_as_torch_does(shared):
    """The bound on the meeting is not one on the steps: a process may be busy for minutes."""
    told = json.loads((shared / "patience.json").read_text())
    assert told == [torch.distributed.constants.default_pg_timeout.total_seconds()]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"accelerator": "cuda"}, "not available"),
        ({"accelerator": "abacus"}, "abacus"),
        ({"strategy": "chance"}, "chance"),
        ({"precision": "7-true"}, "7-true"),
    ],
)
def test_what_this_machine_or_lightning_does_not_have_is_refused(request_, told):
    pytest.importorskip("lightning_fabric", reason="several processes are Lightning Fabric's part")
    if request_.get("accelerator") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises((ValueError, RuntimeError), match=told):
        processes(**request_)


def test_one_process_on_the_cpu_needs_no_lightning(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    assert isinstance(processes(accelerator="cpu"), SingleProcess)
    with pytest.raises(ImportError, match=r"unhinge\[train\]"):
        processes(2, "ddp", "cpu")


@pytest.fixture
def group(tmp_path):
    """A process group of one: its sums are its own."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("training", [True, False])
def test_shared_batch_norm_of_one_process_is_batch_norm(group, training):
    norm = torch.nn.BatchNorm2d(3).double().train(training)
    torch.nn.init.normal_(norm.weight)
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3)).double().train(training)
    model.load_state_dict({f"0.{key}": value for key, value in norm.state_dict().items()})
    share_batch_norm(model, torch.device("cpu"))
    assert isinstance(model[0], SharedBatchNorm2d)
    x = torch.randn(4, 3, 2, 5, dtype=torch.float64) * 3 + 1
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, wanted = model(mine), norm(theirs)
    torch.testing.assert_close(out, wanted)
    seed = torch.randn_like(out)
    out.backward(seed)
    wanted.backward(seed)
    torch.testing.assert_close(mine.grad, theirs.grad)
    for (name, one), (_, other) in zip(model.named_parameters(), norm.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    for key, value in norm.state_dict().items():
        torch.testing.assert_close(model.state_dict()[f"0.{key}"], value)
