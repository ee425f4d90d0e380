"""Programs of a checkout that trained the nano models and made the studies of docs/; not in wheels.

`python -m studies.nano_bloom` trains, `.schemes` compares position schemes, `.stretchings` compares
stretchings on models that nothing was tuned on, and `.encoder` stretches encoders. They may use
anything; the package never imports them.
"""

from importlib import import_module


def start(name: str) -> None:
    """Run the program of a study; an error of the user's, or a missing package, is one sentence."""
    from ntk_alibi.cli import errors

    with errors.sentences(f"python -m studies.{name}"):
        import_module(f"studies.{name}.program").main()
