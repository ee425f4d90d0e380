"""Programs that trained the nano models and made the studies in docs/; wheels leave them out.

`python -m studies.nano_bloom` trains the nano BLOOM, `.schemes` compares position schemes,
`.stretchings` compares methods in forms that models were not trained on, and `.encoder` stretches
encoders. The package never imports them.
"""

from importlib import import_module


def start(name: str) -> None:
    """Run the program of a study; a user's error or a missing package is reported in a sentence."""
    from ntk_alibi.cli import errors

    with errors.sentences(f"python -m studies.{name}"):
        import_module(f"studies.{name}.program").main()
