"""What is made ahead in threads: in order, and no more at once than is said."""

import threading

import pytest

from tfunet.prediction.ahead import ahead


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_few_are_made_at_once(threads):
    asked, most = [], 0
    lock = threading.Lock()

    def make(number):
        with lock:
            asked.append(number)
        return 2 * number

    for used, made in enumerate(ahead(make, range(20), threads=threads)):
        assert made == 2 * used
        with lock:
            most = max(most, len(asked) - used)
    assert sorted(asked) == list(range(20))
    # The one that is used, and one more than there are threads.
    assert most <= threads + 1


def test_an_error_comes_where_its_result_would():
    made = ahead(lambda number: 1 // number, [2, 1, 0])
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(made)
