"""Asking the SDN controller of an installation, for commands that show what it says."""

from __future__ import annotations

from typing import Any

from cluster.errors import ControllerSilent, NotRunning

TIMEOUT_SECONDS = 15.0


def ask(controller: str | None, path: str, **parameters: object) -> Any:
    """The answer to GET `path` as it came in JSON. Raises NotRunning if the installation has no controller,
    ControllerSilent if there is no answer, or it is a refusal, which is told in its own words."""
    import requests

    if controller is None:
        raise NotRunning("this installation has no SDN controller; one on a fabric has: `speedwell up --fabric`, "
                         "or name one with --controller URL")
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    try:
        answer = requests.get(controller.rstrip("/") + path, params=given, timeout=TIMEOUT_SECONDS)
        document = answer.json()
    except requests.ConnectionError:
        raise ControllerSilent(f"the controller at {controller} cannot be reached") from None
    except requests.Timeout:
        raise ControllerSilent(f"the controller at {controller} did not answer in {TIMEOUT_SECONDS:g} s") from None
    except (requests.RequestException, ValueError):
        raise ControllerSilent(f"what answers at {controller} is no controller of Speedwell") from None
    if not answer.ok:
        raise ControllerSilent(str(document.get("detail", f"the controller answered {answer.status_code}")))
    return document
