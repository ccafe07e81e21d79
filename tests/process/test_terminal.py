"""Lines without a terminal come once a minute."""

from tfunet.process.terminal import Minutes


def test_a_line_a_minute():
    now = [100.0]
    minutes = Minutes(lambda: now[0])
    said = []
    for second in range(1, 200):
        now[0] = 100.0 + second
        if minutes.have_passed():
            said.append(second)
    assert said == [60, 120, 180]
