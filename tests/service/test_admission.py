"""Admission: one runs, a bounded number waits, the bytes under way are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.admission import Admission
from service.errors import PROBLEMS, Problem
from service.settings import Settings


def run(scenario: Callable[[Admission], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await scenario(Admission(Settings(**settings)))

    asyncio.run(main())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def refused_as(slug: str) -> Any:
    return pytest.raises(Problem, check=lambda error: error.slug == slug)


def test_free_slot_is_given_at_once() -> None:
    async def scenario(admission: Admission) -> None:
        assert await admission.acquire() < 50
        assert admission.running == 1
        admission.release()
        assert admission.running == 0

    run(scenario)


def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    async def scenario(admission: Admission) -> None:
        order: list[int] = []

        async def one(number: int) -> None:
            await admission.acquire()
            order.append(number)
            await asyncio.sleep(0.002)
            admission.release()

        await asyncio.gather(*(one(number) for number in range(8)))
        assert order == list(range(8))
        assert admission.running == 0 and admission.waiting == 0

    run(scenario)


def test_at_most_one_runs_at_a_time() -> None:
    async def scenario(admission: Admission) -> None:
        inside = most = 0

        async def one() -> None:
            nonlocal inside, most
            await admission.acquire()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            admission.release()

        await asyncio.gather(*(one() for _ in range(12)))
        assert most == 1

    run(scenario)


def test_full_queue_refuses_at_once_with_when_to_come_back() -> None:
    async def scenario(admission: Admission) -> None:
        await admission.acquire()
        waiting = [asyncio.create_task(admission.acquire()) for _ in range(2)]
        await settle()
        assert admission.waiting == 2
        with refused_as("too-busy") as caught:
            await admission.acquire()
        assert PROBLEMS[caught.value.slug][0] == 429
        assert int(caught.value.headers["retry-after"]) >= 1
        for _ in waiting:
            admission.release()
        await asyncio.gather(*waiting)
        admission.release()
        assert admission.running == 0

    run(scenario, waiting=2)


def test_wait_that_takes_too_long_is_refused_and_leaves_the_queue() -> None:
    async def scenario(admission: Admission) -> None:
        await admission.acquire()
        with refused_as("too-busy") as caught:
            await admission.acquire()
        assert "within 0.05 s" in caught.value.detail
        assert admission.waiting == 0 and admission.running == 1
        admission.release()
        assert admission.running == 0

    run(scenario, wait_seconds=0.05)


def test_waiter_that_leaves_gives_its_place_away() -> None:
    async def scenario(admission: Admission) -> None:
        await admission.acquire()
        first, second = (asyncio.create_task(admission.acquire()) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        assert admission.waiting == 1
        admission.release()
        await second
        assert admission.running == 1
        admission.release()
        assert admission.running == 0

    run(scenario)


def test_waiter_that_leaves_in_the_moment_of_its_turn_passes_the_slot_on() -> None:
    async def scenario(admission: Admission) -> None:
        await admission.acquire()
        first, second = (asyncio.create_task(admission.acquire()) for _ in range(2))
        await settle()
        admission.release()  # first's turn, but it has not woken up yet
        first.cancel()
        await asyncio.wait_for(second, 1)
        assert admission.running == 1
        admission.release()
        assert admission.running == 0

    run(scenario)


def test_answer_over_the_limit_is_refused_with_the_numbers() -> None:
    async def scenario(admission: Admission) -> None:
        async with admission.answer_bytes(100):
            assert admission.bytes_in_flight == 100
        with refused_as("answer-too-large") as caught:
            async with admission.answer_bytes(101):
                raise AssertionError("let in")
        assert (caught.value.limit, caught.value.actual) == (100, 101)
        assert admission.bytes_in_flight == 0

    run(scenario, max_answer_bytes=100)


def test_answers_together_over_the_budget_are_asked_to_come_back() -> None:
    async def scenario(admission: Admission) -> None:
        async with admission.answer_bytes(100), admission.answer_bytes(50):
            with refused_as("too-busy"):
                async with admission.answer_bytes(1):
                    raise AssertionError("let in")
        assert admission.bytes_in_flight == 0
        async with admission.answer_bytes(1):
            pass

    run(scenario, max_answer_bytes=100, max_in_flight_bytes=150)


def test_budget_is_given_back_by_a_failure() -> None:
    async def scenario(admission: Admission) -> None:
        with pytest.raises(ZeroDivisionError):
            async with admission.answer_bytes(10):
                raise ZeroDivisionError
        assert admission.bytes_in_flight == 0

    run(scenario)


def test_step_waits_where_the_queue_is_full_and_takes_no_place_in_it() -> None:
    async def scenario(admission: Admission) -> None:
        await admission.acquire()
        step = asyncio.create_task(admission.acquire(step=True))
        await settle()
        waiting = asyncio.create_task(admission.acquire())  # the one place is still free
        await settle()
        another = asyncio.create_task(admission.acquire(step=True))
        await settle()
        with refused_as("too-busy"):
            await admission.acquire()
        order: list[str] = []
        for name, task in (("step", step), ("run", waiting), ("another", another)):
            task.add_done_callback(lambda _, name=name: order.append(name))
        for _ in range(3):
            admission.release()
            await settle()
        assert order == ["step", "run", "another"]
        admission.release()
        assert admission.running == admission.waiting == 0

    run(scenario, waiting=1)


def test_step_waits_longer_than_a_request_may() -> None:
    async def scenario(admission: Admission) -> None:
        await admission.acquire()
        step = asyncio.create_task(admission.acquire(step=True))
        await settle()
        with refused_as("too-busy"):
            await admission.acquire()
        assert not step.done()
        admission.release()
        await step

    run(scenario, wait_seconds=0.01)


def test_generations_over_their_number_are_refused_and_places_given_back() -> None:
    async def scenario(admission: Admission) -> None:
        async with admission.generation(), admission.generation():
            assert admission.generating == 2
            with refused_as("too-busy") as caught:
                async with admission.generation():
                    raise AssertionError("let in")
            assert int(caught.value.headers["retry-after"]) >= 1
            assert admission.generating == 2
        assert admission.generating == 0
        with pytest.raises(ZeroDivisionError):
            async with admission.generation():
                raise ZeroDivisionError
        assert admission.generating == 0

    run(scenario, generations=2)


def test_what_a_run_keeps_counts_for_all_together_and_not_for_one_answer() -> None:
    async def scenario(admission: Admission) -> None:
        async with admission.answer_bytes(100, beside=60):
            assert admission.bytes_in_flight == 160
            with refused_as("too-busy"):
                async with admission.answer_bytes(50):
                    raise AssertionError("let in")
        with refused_as("answer-too-large") as caught:
            async with admission.answer_bytes(100, beside=101):
                raise AssertionError("let in")
        assert (caught.value.limit, caught.value.actual) == (200, 201)
        assert admission.bytes_in_flight == 0

    run(scenario, max_answer_bytes=100, max_in_flight_bytes=200)
