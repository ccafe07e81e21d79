"""Where the pixels of cases come from: a copy of decoded cases on disk, or their files.

A copy is written while others read it. Imports no TensorFlow.
"""

import contextlib
import errno
import fcntl
import math
import mmap
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import BinaryIO, Protocol, final

import numpy as np

from tfunet.data.cache_eviction import IMAGES, INDEX, LOCK, MASKS, CacheRoom
from tfunet.data.case_log import PLACES, CaseLog
from tfunet.data.source import BoxReader, DataSource
from tfunet.data.stored_case import (
    BadCaseError,
    CaseFacts,
    KeptCase,
    Sink,
    look_at,
    mask_bits,
    packed_length,
)
from tfunet.files.atomic import write_atomic
from tfunet.files.regular import open_regular
from tfunet.machine.cores import usable_cores

Box = tuple[np.ndarray, np.ndarray]
# Decoded cases that a process keeps in memory where there is no copy on disk.
KEPT_BYTES = 2**29
# Cases whose files are open for boxes.
OPEN_CASES = 64
POLL_SECONDS = 0.02
# Other processes learn of decoded cases after so long, or so much.
PUBLISH_SECONDS = 0.5
PUBLISH_BYTES = 2**26
# A whole row range is read at once where no more than so many times the box is read by it.
MOST_WASTE = 4


class Log(Protocol):
    """What is known of cases."""

    @property
    def facts(self) -> Sequence[CaseFacts | None]:
        """What is known of each case; None where nobody has read it yet."""
        ...

    def places(self, case: int, label: int, number: int) -> int:
        """Return the index of a foreground voxel of a label from 0 in its flattened case."""
        ...


class CaseStore(Protocol):
    """Gives the pixels of cases, and what is known of them."""

    @property
    def log(self) -> Log:
        """What is known of each case."""
        ...

    def begin(self, order: Sequence[int]) -> None:
        """Prepare cases that will be needed in this order."""
        ...

    def ensure(self, case: int) -> None:
        """Wait until a case's facts are known."""
        ...

    def box(self, case: int, start: Sequence[int], stop: Sequence[int]) -> Box:
        """Return the image (*box, channels) float32 and the mask (*box) uint8 of a part of a case.

        Raises BadCaseError for a case that cannot be used.
        """
        ...


@final
class FileStore:
    """Reads cases from their files when they are needed, and keeps a bounded part in memory.

    Boxes are read of files that know boxes. Any other case is decoded as a whole.

    Args:
        source: The data set.
        log: What is known of its cases; what reading shows is added in memory.
        kept_bytes: Most bytes of decoded cases to keep.
    """

    def __init__(self, source: DataSource, log: CaseLog, kept_bytes: int = KEPT_BYTES) -> None:
        self.log = log
        self._source, self._kept_bytes = source, kept_bytes
        self._kept: OrderedDict[int, KeptCase] = OrderedDict()
        self._open: OrderedDict[int, BoxReader | None] = OrderedDict()
        self._lock = threading.Lock()
        self._locks = [threading.Lock() for _ in range(64)]

    def begin(self, order: Sequence[int]) -> None:
        """Prepare nothing."""

    def ensure(self, case: int) -> None:
        """Read a case once if its facts are not known; that it is of no use is one, too."""
        if self.log.facts[case] is None:
            with self._locks[case % len(self._locks)], contextlib.suppress(BadCaseError):
                if self.log.facts[case] is None:
                    self._decoded(case)

    def box(self, case: int, start: Sequence[int], stop: Sequence[int]) -> Box:
        """Return a part of a case."""
        reader = self._reader(case)
        if reader is not None:
            try:
                return reader(start, stop)
            except (ValueError, OSError) as error:
                raise BadCaseError(error) from error
        with self._lock:
            kept = self._kept.get(case)
            if kept is not None:
                self._kept.move_to_end(case)
        if kept is None:
            with self._locks[case % len(self._locks)]:
                kept = self._kept.get(case) or self._decoded(case)
        return kept.box(start, stop)

    def _reader(self, case: int) -> BoxReader | None:
        with self._lock:
            if case in self._open:
                self._open.move_to_end(case)
                return self._open[case]
        facts = self.log.facts[case]
        try:
            reader = self._source.boxes(case, None if facts is None else facts.statistics)
        except (ValueError, OSError) as error:
            raise BadCaseError(error) from error
        with self._lock:
            self._open[case] = reader
            while len(self._open) > OPEN_CASES:
                self._open.popitem(last=False)
        return reader

    def _decoded(self, case: int) -> KeptCase:
        """Read a whole case, keep it, and note what it shows."""
        images: list[np.ndarray] = []
        masks: list[np.ndarray] = []

        def begin(shape: tuple[int, ...], dtype: str) -> Sink:
            images.clear()
            masks.clear()

            def take(row: int, image: np.ndarray, mask: np.ndarray) -> None:
                images.append(image)
                masks.append(mask)

            return take

        try:
            facts, places = look_at(self._source, case, begin=begin)
        except BadCaseError as error:
            self._note(case, _bad(self._source, error))
            raise
        self._note(case, facts, places)
        kept = KeptCase(
            image=np.concatenate(images) if len(images) > 1 else images[0],
            mask=np.concatenate(masks) if len(masks) > 1 else masks[0],
            bits=mask_bits(self._source),
            intensity=self._source.intensity,
            statistics=facts.statistics,
        )
        with self._lock:
            self._kept[case] = kept
            while len(self._kept) > 1 and self._num_kept() > self._kept_bytes:
                self._kept.popitem(last=False)
        return kept

    def _note(self, case: int, facts: CaseFacts, places: Sequence[np.ndarray] = ()) -> None:
        if self.log.facts[case] is None:
            self.log.add(case, facts, places)
            self.log.publish()

    def _num_kept(self) -> int:
        return sum(kept.num_bytes for kept in self._kept.values())


@final
class DecodedStore:
    """A copy of decoded cases on disk, which one process of a machine writes at a time.

    Args:
        source: The data set.
        home: Its folder in the cache.
        alive: Called once in a while when this takes time.
    """

    def __init__(
        self, source: DataSource, home: Path, alive: Callable[[], None] = lambda: None
    ) -> None:
        self.log = case_log(source, home)
        self.home = home
        self._source, self._alive = source, alive
        self._bits = mask_bits(source)
        self._wanted: deque[int] = deque()
        self._order: Iterator[int] = iter(())
        self._busy: set[int] = set()
        self._changed = threading.Condition()
        self._writer: _Writer | None = None
        self._failure: OSError | None = None
        self._files = FileStore(source, self.log)
        self._descriptors: tuple[int, int] | None = None
        self._drop_what_is_gone()

    def _drop_what_is_gone(self) -> None:
        """Take what the files do not hold, because somebody cut them off, as unknown."""
        sizes = [_size(self.home / name) for name in (IMAGES, MASKS, PLACES)]
        for case, facts in enumerate(self.log.facts):
            if facts is None or facts.defect:
                continue
            if not self.log.has_places(case, sizes[2]):
                self.log.forget(case)
            elif (pixels := self.log.pixels[case]) is not None:
                ends = np.add(pixels, self._num_bytes(facts))
                if (ends > sizes[:2]).any():
                    self.log.pixels[case] = None

    def missing(self) -> list[int]:
        """Return the cases that are neither stored nor known to be of no use."""
        return [
            case
            for case, facts in enumerate(self.log.facts)
            if self.log.pixels[case] is None and (facts is None or not facts.defect)
        ]

    @property
    def is_known(self) -> bool:
        """Whether it is known of all cases whether they can be used."""
        return None not in self.log.facts

    def write(
        self, cases: Sequence[int], progress: Callable[[int, int], None] | None = None
    ) -> dict[int, BadCaseError]:
        """Decode cases with a thread on each core, with the store's lock held by the caller.

        Returns what is wrong with those that cannot be used. Raises OSError.
        """
        bad: dict[int, BadCaseError] = {}
        total, done = len(self.log.facts), len(self.log.facts) - len(cases)
        todo = iter(cases)
        writer = _Writer(self)
        pool = ThreadPoolExecutor(len(usable_cores()))

        def some() -> None:
            nonlocal done
            for case in _drawn(todo):
                if writer.failure is not None:
                    return
                try:
                    error = writer.write(case)
                except OSError as failure:
                    writer.failure = failure
                    return
                with self._changed:
                    done += 1
                    if error is not None:
                        bad[case] = error
                    self._changed.notify_all()

        try:
            futures = [pool.submit(some) for _ in usable_cores()]
            told = -1
            while any(not future.done() for future in futures) or told != done:
                with self._changed:
                    self._changed.wait(0.05)
                    now = done
                self._alive()
                if progress is not None and now != told:
                    progress(now, total)
                told = now
                if writer.failure is not None:
                    break
            wait(futures)
            for future in futures:
                future.result()
        except BaseException as error:
            writer.failure = error
            raise
        finally:
            pool.shutdown(wait=True)
            writer.close()
        if isinstance(writer.failure, OSError):
            raise writer.failure
        return dict(sorted(bad.items()))

    def begin(self, order: Sequence[int]) -> None:
        """Decode missing cases in this order in the background, unless another process does."""
        if self._failure is None and self.missing():
            everything = dict.fromkeys((*order, *range(len(self.log.facts))))
            self._order = iter(list(everything))
            self._start()

    def ensure(self, case: int) -> None:
        """Wait until a case's facts are known."""
        if self.log.facts[case] is None:
            self._wait(case)

    def box(self, case: int, start: Sequence[int], stop: Sequence[int]) -> Box:
        """Return a part of a case, which is decoded first if it is not there."""
        if self.log.pixels[case] is None:
            self._wait(case)
        pixels, facts = self.log.pixels[case], self.log.facts[case]
        if facts is not None and facts.defect:
            raise BadCaseError(ValueError(facts.defect))
        if pixels is None or facts is None:  # There is no room for it.
            return self._files.box(case, start, stop)
        first, last = start[0], stop[0]
        images, masks = self._opened()
        across, bytes_across = facts.extent[1:], packed_length(facts.extent[-1], self._bits)
        lines = (*facts.extent[:-1], bytes_across)[1:]
        needed = math.prod(map(int, np.subtract(stop, start)))
        with (
            _rows(
                images,
                pixels[0],
                facts.dtype,
                (*across, self._source.channels),
                (first, last),
                needed * self._source.channels,
            ) as image,
            _rows(masks, pixels[1], "|u1", lines, (first, last), needed) as mask,
        ):
            kept = KeptCase(
                image=image,
                mask=mask,
                bits=self._bits,
                intensity=self._source.intensity,
                statistics=facts.statistics,
            )
            return kept.box((0, *start[1:]), (last - first, *stop[1:]))

    def _wait(self, case: int) -> None:
        """Wait for a case, or decode it."""
        is_asked = False
        while self.log.pixels[case] is None:
            facts = self.log.facts[case]
            if (facts is not None and facts.defect) or self._failure is not None:
                break
            if self._writer is None:
                self.log.refresh()
                if self.log.pixels[case] is None and not self._start():
                    time.sleep(POLL_SECONDS)
                continue
            with self._changed:
                if not is_asked:
                    self._wanted.append(case)
                    is_asked = True
                self._changed.wait(POLL_SECONDS)
        if self.log.facts[case] is None:
            self._files.ensure(case)

    def _start(self) -> bool:
        """Start threads that decode, unless another process has the lock; whether they run."""
        with self._changed:
            if self._writer is not None:
                return True
            try:
                lock = os.fdopen(
                    open_regular(self.home / LOCK, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab"
                )
                if not take_lock(lock):
                    lock.close()
                    return False
                self.log.refresh()
                self._writer = _Writer(self, lock)
            except OSError as error:  # No permission, no locks, no room: the files are read.
                self._failure = error
                return False
            threads = [
                threading.Thread(target=self._decode_in_turn, args=(self._writer,), daemon=True)
                for _ in usable_cores()
            ]
            self._writer.num_threads = len(threads)
            for thread in threads:
                thread.start()
            return True

    def _decode_in_turn(self, writer: "_Writer") -> None:
        while (case := self._next()) is not None and self._failure is None:
            try:
                writer.write(case)
            except OSError as error:
                self._failure = error
            with self._changed:
                self._busy.discard(case)
                self._changed.notify_all()
        with self._changed:
            writer.num_threads -= 1
            if writer.num_threads:
                return
            writer.failure = self._failure
            writer.close()
            self._writer = None

    def _next(self) -> int | None:
        with self._changed:
            while self._wanted:
                if self._is_open(case := self._wanted.popleft()):
                    self._busy.add(case)
                    return case
            for case in self._order:
                if self._is_open(case):
                    self._busy.add(case)
                    return case
            return None

    def _is_open(self, case: int) -> bool:
        facts = self.log.facts[case]
        is_bad = facts is not None and bool(facts.defect)
        return self.log.pixels[case] is None and case not in self._busy and not is_bad

    def _num_bytes(self, facts: CaseFacts) -> tuple[int, int]:
        return stored_bytes(facts.extent, facts.dtype, self._source.channels, self._bits)

    def _opened(self) -> tuple[int, int]:
        if self._descriptors is None:
            images, masks = (
                open_regular(self.home / name, os.O_RDONLY) for name in (IMAGES, MASKS)
            )
            self._descriptors = images, masks
        return self._descriptors


class _Writer:
    """Appends decoded cases to a store's files; several threads may use it at once."""

    def __init__(self, store: DecodedStore, lock: BinaryIO | None = None) -> None:
        self.failure: BaseException | None = None
        self.num_threads = 0
        self._store, self._lock = store, lock
        self._source, self._bits = store._source, store._bits
        self._num_cases = len(store.log.facts)
        self._files = [
            os.fdopen(open_regular(store.home / name, os.O_RDWR | os.O_CREAT), "r+b")
            for name in (IMAGES, MASKS)
        ]
        self._ends = [_past_all(store, at) for at in range(2)]
        for file, end in zip(self._files, self._ends, strict=True):
            file.truncate(end)
        self._room = CacheRoom(store.home)
        self._room.take(sum(self._ends))
        self._guard = threading.Lock()
        self._unpublished = 0
        self._published = time.monotonic()

    def write(self, case: int) -> BadCaseError | None:
        """Decode a case into the store; return what is wrong with one that cannot be used."""
        at: tuple[int, int] = (0, 0)

        def begin(shape: tuple[int, ...], dtype: str) -> Sink:
            nonlocal at
            sizes = self._sizes(shape, dtype)
            at = self._take(sizes)
            of_row = [size // shape[0] for size in sizes]

            def sink(row: int, image: np.ndarray, mask: np.ndarray) -> None:
                if self.failure is not None:
                    raise _StoppedError
                for file, start, step, part in zip(
                    self._files, at, of_row, (image, mask), strict=True
                ):
                    _write_all(file.fileno(), part.data.cast("B"), start + row * step)

            return sink

        try:
            facts, places = look_at(self._source, case, begin=begin)
        except _StoppedError:
            return None
        except BadCaseError as error:
            self._store.log.add(case, _bad(self._source, error))
            return error
        with self._guard:
            self._room.take(self._store.log.add(case, facts, places, at))
            self._unpublished += sum(self._sizes(facts.extent, facts.dtype))
            late = time.monotonic() - self._published > PUBLISH_SECONDS
            if late or self._unpublished > PUBLISH_BYTES:
                self._publish()
        return None

    def _publish(self) -> None:
        """Tell other processes of the cases that are on the disk: also of another machine."""
        for file in self._files:
            os.fsync(file.fileno())
        self._store.log.publish()
        self._unpublished, self._published = 0, time.monotonic()

    def close(self) -> None:
        """Publish the rest, close the files, and give the lock back."""
        try:
            self._publish()
            if self.failure is None and not self._store.missing():
                write_atomic(self._store.home / INDEX, f'{{"cases": {self._num_cases}}}\n')
        except OSError as error:
            self.failure = self.failure or error
        for file in self._files:
            file.close()
        if self._lock is not None:
            self._lock.close()

    def _sizes(self, shape: Sequence[int], dtype: str) -> tuple[int, int]:
        return stored_bytes(shape, dtype, self._source.channels, self._bits)

    def _take(self, sizes: Sequence[int]) -> tuple[int, int]:
        with self._guard:
            self._room.take(sum(sizes))
            at = self._ends[0], self._ends[1]
            self._ends = [end + size for end, size in zip(self._ends, sizes, strict=True)]
            return at


class _StoppedError(Exception):
    """Decoding is over before a case is."""


def case_log(source: DataSource, home: Path) -> CaseLog:
    """Return the log of a data set in its folder, as far as it is written."""
    log = CaseLog(home, len(source.case_ids), len(source.patch), source.num_classes - 1)
    log.refresh()
    return log


def stored_bytes(shape: Sequence[int], dtype: str, channels: int, bits: int) -> tuple[int, int]:
    """Return the bytes of the image and of the mask of a case in a store."""
    image = math.prod(shape) * channels * np.dtype(dtype).itemsize
    return image, math.prod(shape[:-1]) * packed_length(shape[-1], bits)


def take_lock(file: BinaryIO) -> bool:
    """Lock a file, and return whether that worked; False where another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bad(source: DataSource, error: BadCaseError) -> CaseFacts:
    return CaseFacts(extent=(0,) * len(source.patch), defect=str(error) or type(error).__name__)


def _past_all(store: DecodedStore, at: int) -> int:
    """Return one past the last byte of what is stored of images (0) or masks (1)."""
    return max(
        (
            pixels[at] + store._num_bytes(facts)[at]
            for pixels, facts in zip(store.log.pixels, store.log.facts, strict=True)
            if pixels is not None and facts is not None
        ),
        default=0,
    )


def _drawn(cases: Iterator[int]) -> Iterator[int]:
    """Yield from an iterator that several threads share."""
    while True:
        try:
            yield next(cases)
        except StopIteration:
            return


@contextlib.contextmanager
def _rows(
    descriptor: int,
    offset: int,
    dtype: str,
    across: Sequence[int],
    rows: tuple[int, int],
    needed: int,
) -> Iterator[np.ndarray]:
    """Yield the rows of an array in a file.

    They are mapped only where they are much more than the `needed` numbers, and only for so long:
    batch systems count mapped pages as a process's memory.
    """
    row = math.prod(across)
    count, item = row * (rows[1] - rows[0]), np.dtype(dtype).itemsize
    begin, shape = offset + rows[0] * row * item, (rows[1] - rows[0], *across)
    if count <= MOST_WASTE * max(needed, mmap.PAGESIZE):
        values = np.empty(count, dtype)
        _read_all(descriptor, values.data.cast("B"), begin)
        yield values.reshape(shape)
        return
    before = begin % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(
        descriptor, before + count * item, mmap.MAP_SHARED, mmap.PROT_READ, offset=begin - before
    )
    try:
        yield np.frombuffer(pages, dtype, count, before).reshape(shape)
    finally:
        with contextlib.suppress(BufferError):
            pages.close()


def _read_all(descriptor: int, into: memoryview, offset: int) -> None:
    while into:
        done = os.preadv(descriptor, [into], offset)
        if not done:
            raise OSError(errno.EIO, "the file of decoded cases was cut off")
        into, offset = into[done:], offset + done


def _write_all(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        done = os.pwrite(descriptor, content, offset)
        content, offset = content[done:], offset + done


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
