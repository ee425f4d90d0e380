"""`python -m ntk_alibi.evaluation`: lm-evaluation-harness, for `accelerate launch -m`."""

import sys

from ntk_alibi.evaluation.harness.run import main

main(sys.argv[1:])
