import pytest

from tfunet.bench.notebooks.span_plots import step_timeline, time_rows
from tfunet.record import RunFolder


@pytest.fixture
def run(tmp_path):
    """Two processes; the second waits for its input, the first for the second."""
    for process, (wait, reduce) in enumerate(((0.01, 0.06), (0.05, 0.02))):
        with RunFolder(tmp_path).spans_table(process) as table:

            def add(step, name, begin, seconds, table=table):
                row = {"step": step, "name": name, "begin_seconds": begin, "seconds": seconds}
                table.append(row)

            add(0, "start", 0.0, 3.0)
            add(0, "opening the data", 3.0, 1.0)
            for step in range(1, 5):
                begin, seconds = (5.0, 4.0) if step == 1 else (10.0 + step, 0.1)
                add(step, "input", begin, wait)
                add(step, "all-reduce", begin + 0.03, reduce / 2)
                add(step, "all-reduce", begin + 0.06, reduce / 2)
                add(step, "step", begin, seconds)
                add(step, "callbacks after step", begin + seconds, 0.01)
            # After the run, of no step of its own.
            add(4, "input", 20.0, 9.0)
            add(4, "timing steps", 20.0, 9.5)
            add(4, "evaluation", 30.0, 2.0)
    return tmp_path


def test_phases_and_what_a_step_is_made_of(run):
    assert time_rows(run) == [
        {
            "process": process,
            "start (s)": "4.00",
            "first step (s)": "4.00",
            "callbacks (s)": "0.04",
            "step (s)": "0.30",
            "timing steps (s)": "9.50",
            "evaluation (s)": "2.00",
            "all of a step (ms)": "100.0",
            "input of a step (ms)": wait,
            "all-reduce of a step (ms)": reduce,
        }
        for process, wait, reduce in (("0", "10.0", "60.0"), ("1", "50.0", "20.0"))
    ]


def test_timeline_has_the_bars_of_the_steps_that_were_asked_for(run):
    (axes,) = step_timeline(run, 2, 2).axes
    # Each process and step has input, two averages, the step, its callbacks.
    assert len(axes.patches) == 2 * 2 * 5
    (legend,) = axes.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        "step",
        "other",
        "input",
        "all-reduce",
    }
    with pytest.raises(ValueError, match=r"one of the steps 1 to 4 of .*, got 9"):
        step_timeline(run, 9, 1)
