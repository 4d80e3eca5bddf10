"""How applications find each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest

from speedwell.controller.application import Application
from speedwell.controller.errors import MissingService, ServiceTaken
from speedwell.controller.loops import Loops
from speedwell.controller.services import Services


class Greeter(Protocol):
    def greet(self) -> str: ...


class Asking(Application):
    """Needs something that somebody greets, and is needed by who does."""

    def start(self) -> None:
        self.greeter = self.services.get(Greeter)


class Greeting(Application):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        services.provide(Greeter, self)

    def start(self) -> None:
        self.asking = self.services.get(Asking)

    def greet(self) -> str:
        return "good day"


@pytest.mark.parametrize("order", [(Asking, Greeting), (Greeting, Asking)])
def test_two_applications_that_need_each_other_start_in_any_order(order: Sequence[type[Application]]) -> None:
    services = Services(Loops())
    for application in [kind(services) for kind in order]:
        application.start()
    asking, greeting = services.get(Asking), services.get(Greeting)
    assert asking.greeter.greet() == "good day"
    assert greeting.asking is asking and asking.greeter is greeting


def test_an_application_without_what_it_needs_does_not_start_and_the_error_names_it() -> None:
    asking = Asking(Services(Loops()))
    with pytest.raises(MissingService, match=r"nothing provides .*test_services\.Greeter"):
        asking.start()


def test_what_is_provided_already_is_not_replaced() -> None:
    first, second = Loops(), Loops()
    services = Services(first)
    with pytest.raises(ServiceTaken, match=r"controller\.loops\.Loops"):
        services.provide(Loops, second)
    assert services.get(Loops) is first
