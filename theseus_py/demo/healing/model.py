"""What the run trains: two layers in plain NumPy, and gradients whose sum is the same in every order.

Schedules add up in different orders, and floating point then differs in its last bits. Gradients are therefore rounded
to multiples of 2^-18, of which float32 adds four exactly; so a run whose schedule changed midway must end with the very
bits of one whose schedule never did.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

WIDTH = 512
HIDDEN = 1024
BATCH = 8
_CAUSES = 16  # the data's own dimensions, so that few steps are enough to learn something
_QUANTUM = np.float32(2.0**18)
_LARGEST = np.float32(8.0)  # four of them, in quanta, fit the 24 bits of a float32
_RATE = np.float32(0.5)
_MOMENTUM = np.float32(0.9)


class Model:
    """tanh(x W1) W2, in one flat vector of weights, trained on mean squared error by SGD with momentum."""

    def __init__(self, seed: int) -> None:
        numbers = np.random.default_rng(seed)
        self._seed = seed
        self.weights: Array = (numbers.standard_normal(2 * WIDTH * HIDDEN, np.float32) / np.float32(40)).astype(
            np.float32
        )
        self._speed: Array = np.zeros_like(self.weights)
        self._inputs: Array = numbers.standard_normal((_CAUSES, WIDTH), np.float32) / np.float32(_CAUSES**0.5)
        self._outputs: Array = numbers.standard_normal((_CAUSES, WIDTH), np.float32) / np.float32(_CAUSES**0.5)

    def gradient(self, step: int, rank: int, out: Array) -> float:
        """Writes the rounded gradient of this rank's batch into `out`; returns the loss."""
        causes = np.random.default_rng((self._seed, step, rank)).standard_normal((BATCH, _CAUSES), np.float32)
        inputs, wanted = causes @ self._inputs, causes @ self._outputs
        half = WIDTH * HIDDEN
        first, second = self.weights[:half].reshape(WIDTH, HIDDEN), self.weights[half:].reshape(HIDDEN, WIDTH)
        hidden = np.tanh(inputs @ first)
        error = hidden @ second - wanted
        back = error / np.float32(BATCH)
        np.matmul(hidden.T, back, out=out[half:].reshape(HIDDEN, WIDTH))
        np.matmul(inputs.T, (back @ second.T) * (1 - hidden * hidden), out=out[:half].reshape(WIDTH, HIDDEN))
        round_gradient(out)
        return float(np.mean(error * error))

    def update(self, mean_gradient: Array) -> None:
        """One step of SGD."""
        self._speed *= _MOMENTUM
        self._speed += mean_gradient
        self.weights -= _RATE / np.float32(WIDTH) * self._speed

    def fingerprint(self) -> int:
        """CRC-32 of the weights' bits."""
        return zlib.crc32(self.weights.tobytes())


def round_gradient(values: Array) -> None:
    """Rounds in place to what four ranks add up exactly, whatever the order."""
    np.clip(values, -_LARGEST, _LARGEST, out=values)
    values *= _QUANTUM
    np.rint(values, out=values)
    values /= _QUANTUM
