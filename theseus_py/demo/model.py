"""The demo's model and data: a small transformer that reads scikit-learn's handwritten digits row by row."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

TOKENS = 8  # rows of an image
PIXELS = 8  # per row
CLASSES = 10


class DigitTransformer(nn.Module):
    """Eight rows of eight pixels in, scores of ten digits out: [batch, 8, 8] -> [batch, 10]."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, width)
        self.position = nn.Parameter(torch.randn(TOKENS, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.encoder(self.embed(images) + self.position)
        scores: torch.Tensor = self.head(self.norm(hidden.mean(dim=1)))
        return scores


@dataclass(frozen=True)
class Digits:
    """Images [n, 8, 8] in 0..1 and labels [n], split once and for all."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits() -> Digits:
    """The 1,797 digits that scikit-learn's package ships; the last fifth of a fixed shuffle is for testing."""
    pixels, target = _read_digits()
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, TOKENS, PIXELS) / 16.0
    labels = torch.tensor(target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(labels) * 4 // 5
    train, test = order[:cut], order[cut:]
    return Digits(images[train], labels[train], images[test], labels[test])


def _read_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Pixels [n, 64] and labels [n]. Read from scikit-learn's own file: importing it costs every rank two seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ModuleNotFoundError("the demo's data comes with scikit-learn: pip install scikit-learn")
    for folder in package.submodule_search_locations or []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn import datasets

    bunch = datasets.load_digits()
    return bunch.data, bunch.target
