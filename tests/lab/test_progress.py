import io

from rich.console import Console

from laconic.lab.progress import LiveTable
from laconic.lab.worker import Settings
from tests.support.recorded import evaluation, header, step, write


def _settings(directory, spec="dense"):
    tuned = {"steps": 10, "batch": 1, "lr": 0.1, "momentum": 0.0, "optimizer": "sgd", "eval_every": 5}
    return Settings(task="digits", spec=spec, workers=2, record=str(directory / f"{spec}.jsonl"), **tuned)


def _drawn(table):
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table._table())
    return console.export_text()


def test_the_table_shows_steps_speed_bytes_and_time_left(tmp_path):
    runs = [_settings(tmp_path), _settings(tmp_path, "ddp")]
    table = LiveTable(runs, "a title")
    with table:
        table.start(runs[0])
        steps = [step(number, 0.5, tx=2_000_000, loss=1.5) for number in (1, 2)]
        write(tmp_path / "dense.jsonl", [header(), *steps, evaluation(2, 0.75, 1.0)])
        table.look()
        text = _drawn(table)
        for word in (
            "a title",
            "Dense",
            "2/10",
            "500 ms",
            "2.00 MB",
            "1.500",
            "0.750",
            "0:04 left",
            "0/10",
            "queued",
        ):
            assert word in text, word
        table.finish()
    assert "1 of 2 runs done" in _drawn(table)


def test_off_a_terminal_nothing_is_shown(tmp_path, capsys):
    with LiveTable([_settings(tmp_path)], "a title"):
        pass
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
