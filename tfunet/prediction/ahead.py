"""Makes what comes next in threads, while what came before is used. Imports no TensorFlow."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def ahead(
    make: Callable[[Given], Made], given: Iterable[Given], *, threads: int = 1
) -> Iterator[Made]:
    """Yield `make(each)` in order; as many as there are threads are made or waiting meanwhile."""
    coming: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for each in given:
            coming.append(pool.submit(make, each))
            if len(coming) > threads:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
