import queue
import threading
import time
import weakref
from datetime import timedelta

import pytest

from laconic.engine.waiters import Waiters, to_the_end


class Work:
    """Ends when it is told to."""

    def __init__(self, error=None):
        self._end, self._error = threading.Event(), error

    def end(self):
        self._end.set()

    def is_completed(self):
        return self._end.is_set()

    def wait(self, timeout=timedelta(seconds=10)):
        if not self._end.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if self._error is not None:
            raise self._error


class Posted:
    """Waiters, and what they tell of each number."""

    def __init__(self, count):
        self.waiters, self.told = Waiters(count), queue.SimpleQueue()

    def post(self, number, *works):
        self.waiters.post(works, lambda error: self.told.put((number, error)))

    def next(self):
        return self.told.get(timeout=10)


def test_what_ends_first_is_told_first():
    posted, works = Posted(3), [Work(), Work(), Work()]
    for number, work in enumerate(works):
        posted.post(number, work)
    for number in (1, 2, 0):
        works[number].end()
        assert posted.next() == (number, None)
    posted.waiters.close()


class _EndsLate(Work):
    """Ends just when a slice has passed, before anybody asks whether it has."""

    def wait(self, timeout=timedelta(seconds=10)):
        if not self.is_completed():
            self.end()
            raise RuntimeError("Operation timed out!")
        super().wait(timeout)


@pytest.mark.parametrize("error", [None, RuntimeError("Connection closed by peer")])
def test_a_slice_that_has_passed_is_no_failure(error):
    posted = Posted(1)
    posted.post(1, _EndsLate(error))
    assert posted.next() == (1, error)
    posted.waiters.close()


def test_all_works_of_an_item_must_end():
    posted, (first, second, other) = Posted(2), (Work(), Work(), Work())
    posted.post(7, first, second)
    posted.post(8, other)
    first.end()
    other.end()
    assert posted.next() == (8, None)
    second.end()
    assert posted.next() == (7, None)
    posted.waiters.close()


def test_what_went_wrong_is_told():
    posted, error = Posted(1), RuntimeError("gone")
    work = Work(error)
    posted.post(0, work)
    work.end()
    assert posted.next() == (0, error)
    posted.waiters.close()


def test_nothing_of_what_has_ended_is_kept():
    posted, work = Posted(1), Work()
    kept = weakref.ref(work)
    posted.post(0, work)
    work.end()
    posted.next()
    del work
    deadline = time.monotonic() + 10
    while (
        kept() is not None
    ):  # a destroyed transfer of gloo's ends the process, if it is the interpreter's last
        assert time.monotonic() < deadline
        time.sleep(0.002)
    posted.waiters.close()


def test_a_thread_ends_whose_work_does_not():
    posted = Posted(1)
    posted.post(0, Work())
    assert posted.waiters.close(10)


def test_and_one_that_waits_to_the_end_does_not():
    waiters, work, told = Waiters(1, wait=to_the_end), Work(), queue.SimpleQueue()
    waiters.post([work], told.put)
    assert not waiters.close(0.1)
    work.end()
    assert told.get(timeout=10) is None
    assert waiters.close(10)


def test_closed_threads_end():
    others = set(threading.enumerate())  # some of which may be about to end
    waiters = Waiters(4)
    threads = set(threading.enumerate()) - others
    assert len(threads) == 4
    waiters.close(10)
    assert not any(thread.is_alive() for thread in threads)
