"""Lines without a terminal come once a minute."""

from tfunet.process.terminal import Minutes, reading


def test_a_line_a_minute():
    now = [100.0]
    minutes = Minutes(lambda: now[0])
    said = []
    for second in range(1, 200):
        now[0] = 100.0 + second
        if minutes.have_passed():
            said.append(second)
    assert said == [60, 120, 180]


def test_reading_says_what_it_begins_with_and_how_far_it_is_once_a_minute(capsys):
    now = [0.0]
    minutes = Minutes(lambda: now[0])
    for item in reading("masks", "file", minutes)("abcdef"):
        now[0] += 20 + ord(item) % 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["Reading masks: 6 files", "Reading masks: 3 of 6 files"]
