"""A transformer with fixed prototypes in the `Trainer` of Hugging Face.

`replace_head` puts the prototypes in the place of the classifier; the unhinged loss goes in as `compute_loss_func`. The
model is a BERT of two layers with random weights, and its task to name the token that occurs most often.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from unhinge.nn import ETFHead, UnhingedLoss, replace_head

CLASSES, LENGTH = 4, 12


def sentences(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Random tokens, half of them replaced by the token of the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    tokens = torch.randint(CLASSES, 30, (count, LENGTH), generator=generator)
    chosen = torch.rand(count, LENGTH, generator=generator) < 0.5
    tokens = torch.where(chosen, labels[:, None], tokens)
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def model_of(classes: int) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=30,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=classes,
    )
    model = BertForSequenceClassification(config)
    replace_head(model, lambda dim, count: ETFHead(dim, count, normalize=True, scale=8.0), name="classifier")
    return model


def loss_of(outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """The mean over the batch, or over all batches that the trainer accumulates into one step."""
    if num_items_in_batch is None:
        return UnhingedLoss()(outputs["logits"], labels)
    return UnhingedLoss(reduction="sum")(outputs["logits"], labels) / num_items_in_batch


def accuracy(prediction: tuple[Tensor, Tensor]) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main(epochs: int = 3) -> Trainer:
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model_of(CLASSES),
            arguments,
            train_dataset=sentences(512, seed=0),
            eval_dataset=sentences(128, seed=1),
            compute_loss_func=loss_of,
            compute_metrics=accuracy,
        )
        trainer.train()
        print(
            f"accuracy {trainer.evaluate()['eval_accuracy']:.3f} on sentences it has not seen; chance is {1 / CLASSES}"
        )
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    trainer = main(parser.parse_args().epochs)
