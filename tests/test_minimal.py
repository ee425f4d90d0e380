"""If only one test file is run, then this one: does an installed wheel work at all?"""

import numpy as np

import ntk_alibi as na


def test_slopes_bias_and_info() -> None:
    assert na.alibi_slopes(2).tolist() == [2.0**-4, 2.0**-8]
    assert na.build_alibi_tensor(np.ones((1, 3), np.int64), 1, np.float32).tolist() == [
        [[0.0, 2.0**-8, 2.0**-7]]
    ]
    assert na.info()["isa"] in na.info()["isas"]
