"""Calls of the command line in this process."""

from ssd.run import main


def call(capsys, *arguments):
    """(exit code, stdout, stderr) of the command."""
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *arguments):
    """The one sentence with which the command line refuses the arguments."""
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ssd: ") and err.count("\n") == 1 and "Traceback" not in err
    return err
