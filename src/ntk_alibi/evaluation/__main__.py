"""Entry point of `python -m ntk_alibi.evaluation`.

It runs lm-evaluation-harness with our model and tasks, so that `accelerate launch -m` can start it.
"""

import sys

from ntk_alibi.evaluation.harness.run import main

main(sys.argv[1:])
