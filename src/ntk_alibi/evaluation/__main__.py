"""Entry point of `python -m ntk_alibi.evaluation`.

It runs lm-evaluation-harness with our model and tasks; `accelerate launch -m` can start it.
"""

import sys

from ntk_alibi.cli import errors

with errors.sentences("python -m ntk_alibi.evaluation"):
    from ntk_alibi.evaluation.harness.run import main

    main(sys.argv[1:])
