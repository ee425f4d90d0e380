"""Quick checks of an installed wheel: if only one test file is run, then this one."""

import numpy as np

import ntk_alibi as na


def test_slopes_bias_and_info() -> None:
    assert na.alibi_slopes(2).tolist() == [2.0**-4, 2.0**-8]
    assert na.build_alibi_tensor(np.ones((1, 3), np.int64), 1, np.float32).tolist() == [
        [[0.0, 2.0**-8, 2.0**-7]]
    ]
    assert na.info()["isa"] in na.info()["isas"]


def test_attention() -> None:
    value = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    zeros = np.zeros_like(value)
    weights = 2.0 ** (-np.array([2.0, 1.0, 0.0]) / 256 / np.log(2))  # one head has slope 2^-8
    output = na.attention(zeros, zeros, value, na.ALiBi(1))
    np.testing.assert_allclose(output[0, 0, 2], weights @ value[0, 0] / weights.sum(), rtol=1e-6)
