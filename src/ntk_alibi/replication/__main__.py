"""Entry point of `python -m ntk_alibi.replication`."""

from ntk_alibi import _command_line

if __name__ == "__main__":
    with _command_line.sentences("python -m ntk_alibi.replication"):
        from ntk_alibi.replication.study import main

        main()
