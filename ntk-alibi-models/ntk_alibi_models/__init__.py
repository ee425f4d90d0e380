"""Data of ntk_alibi: a nano BLOOM and the King James Bible, for evaluations and examples."""
