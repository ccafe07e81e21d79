"""What of a process's output reaches the terminal and what its log."""

import io
from pathlib import Path

import pytest

from tfunet.bench.launch.process_output import TAIL_LINES, Log, Screen, Stream, last_words
from tfunet.files.atomic import WriteError

NATIVE = "2024-05-01 12:00:00.123456: E external/local_xla/cuda_dnn.cc:9] Unable to register\n"


class Parts:
    """One stream with its log and its terminal."""

    def __init__(self, tmp_path, prefix="", owner=0, screen=None, terminal=None):
        self.path = tmp_path / f"log-{owner}.txt"
        self.log = Log(self.path, self.path.open("ab", buffering=0))
        self.terminal = terminal or io.StringIO()
        self.stream = Stream(
            self.log,
            screen=screen or Screen(),
            target=self.terminal,
            owner=owner,
            prefix=prefix,
        )

    def after(self, *chunks: str | bytes) -> tuple[str, str]:
        for chunk in chunks:
            self.stream.feed(chunk.encode() if isinstance(chunk, str) else chunk)
        self.stream.finish()
        self.log.close()
        return self.terminal.getvalue(), self.path.read_text()


@pytest.mark.parametrize(
    ("chunks", "shown", "logged"),
    [
        (["a\nb\n"], "[0] a\n[0] b\n", "a\nb\n"),
        (["a", "b\n", "c"], "[0] ab\n[0] c\n", "ab\nc\n"),
        (["\n\n"], "\n\n", "\n\n"),
        # tqdm puts the carriage return first and flushes: what it drew is shown at once.
        (["\r 0%", "\r50%", "\r100%", "\n"], "\r[0]  0%\r[0] 50%\r[0] 100%\n", "100%\n"),
        (["50%\r100%\r", "\n"], "[0] 50%\r[0] 100%\r\n", "100%\n"),
        # tqdm(leave=False) wipes its bar, then something else is printed on that line.
        (["\r99%", "\r   \r", "done\n"], "\r[0] 99%\r[0]    \r[0] done\n", "done\n"),
        (["a\r\nb\r\n"], "[0] a\r\n[0] b\r\n", "a\nb\n"),
        # Python writes a line of a traceback in parts.
        (["  ", "raise", "\n"], "[0]   raise\n", "  raise\n"),
        # A character cut in two by the pipe.
        (["█".encode()[:1], "█".encode()[1:] + b"\n"], "[0] █\n", "█\n"),
        ([b"\xff\n"], "[0] \ufffd\n", None),
        (["", ""], "", ""),
    ],
)
def test_lines_are_prefixed_and_logged(tmp_path, chunks, shown, logged):
    parts = Parts(tmp_path, prefix="[0] ")
    if logged is None:
        parts.stream.feed(chunks[0])
        assert parts.terminal.getvalue() == shown
        assert parts.path.read_bytes() == chunks[0]
    else:
        assert parts.after(*chunks) == (shown, logged)


def test_line_written_in_parts_is_not_cut_by_another_process(tmp_path):
    screen, terminal = Screen(), io.StringIO()
    one = Parts(tmp_path, "[0] ", 0, screen, terminal)
    two = Parts(tmp_path, "[1] ", 1, screen, terminal)
    # As print("loss", 0.5) arrives.
    for part in ("loss", " ", "0.5", "\n"):
        one.stream.feed(part.encode())
        two.stream.feed(part.encode())
    one.log.close()
    two.log.close()
    assert terminal.getvalue() == "[0] loss 0.5\n[1] loss 0.5\n"


@pytest.mark.parametrize("prefix", ["", "[0] "])
def test_progress_is_shown_before_its_line_ends(tmp_path, prefix):
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="utf-8")
    Parts(tmp_path, prefix, terminal=terminal).stream.feed(b"\r 50%")
    assert raw.getvalue().decode() == f"\r{prefix} 50%"


@pytest.mark.parametrize(
    "line",
    [
        NATIVE,
        "2024-05-01 12:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:2] This\n",
        "E0000 00:00:1731400000.123456   12345 cuda_dnn.cc:8310] Unable to register\n",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    ],
)
def test_native_messages_stay_in_the_log(tmp_path, line):
    assert Parts(tmp_path, prefix="[0] ").after("a\n", line, "b\n") == (
        "[0] a\n[0] b\n",
        f"a\n{line}b\n",
    )


def test_fatal_native_message_is_shown(tmp_path):
    line = NATIVE.replace(": E ", ": F ")
    assert Parts(tmp_path).after(line) == (line, line)


def test_process_that_is_not_shown_is_logged(tmp_path):
    path = tmp_path / "log-1.txt"
    log = Log(path, path.open("ab", buffering=0))
    stream = Stream(log, screen=Screen(), target=None, owner=1, prefix="[1] ")
    stream.feed(b"a\n")
    log.close()
    assert path.read_text() == "a\n"


def test_lines_of_two_processes_do_not_run_into_each_other(tmp_path):
    screen, terminal = Screen(), io.StringIO()
    one = Parts(tmp_path, "[0] ", 0, screen, terminal)
    two = Parts(tmp_path, "[1] ", 1, screen, terminal)
    one.stream.feed(b"\r 50%")
    two.stream.feed(b"a\n")
    one.stream.feed(b"\r100%\n")
    one.log.close()
    two.log.close()
    assert terminal.getvalue() == "\r[0]  50%\n[1] a\n\r[0] 100%\n"


def test_long_progress_does_not_grow_in_memory(tmp_path):
    parts = Parts(tmp_path)
    for step in range(2000):
        parts.stream.feed(f"\r{step:100d}".encode())
    assert len(parts.stream._line) < 200
    assert parts.after("\n")[1].split() == ["1999"]


def test_tail_and_last_words(tmp_path):
    parts = Parts(tmp_path)
    assert last_words(parts.log.tail) == ""
    for line in range(100):
        parts.stream.feed(f"{line}\n".encode())
    # TensorFlow may still say something after Python's traceback.
    parts.stream.feed(f"ValueError: no\n\n{NATIVE}".encode())
    parts.log.close()
    assert len(parts.log.tail) == TAIL_LINES
    assert last_words(parts.log.tail) == "ValueError: no"


def test_terminal_that_cannot_show_a_character_shows_the_rest(tmp_path):
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Screen().write(0, terminal, "a█b\n")
    assert raw.getvalue() == b"a?b\n"


def test_closed_terminal_is_no_error(tmp_path):
    terminal = io.StringIO()
    parts = Parts(tmp_path, terminal=terminal)
    terminal.close()
    parts.stream.feed(b"a\n")
    parts.log.close()
    assert parts.path.read_text() == "a\n"


def test_full_disk_is_said_once_and_the_tail_goes_on(tmp_path):
    with Path("/dev/full").open("ab", buffering=0) as full:
        log = Log(tmp_path / "log-0.txt", full)
        with pytest.raises(WriteError, match=r"log-0\.txt: No space left on device"):
            log.add([b"one"])
        log.add([b"two"])
    assert list(log.tail) == ["one", "two"]
