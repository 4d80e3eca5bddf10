"""Asking the SDN controller of an installation, for commands that show what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from speedwell.cluster.errors import ControllerSilent, NotRunning
from speedwell.fs.controller import LEADER_HEADER
from speedwell.fs.identity import files
from speedwell.fs.identity.known import identity_for

if TYPE_CHECKING:
    import requests

TIMEOUT_SECONDS = 15.0


def session(controller: str) -> requests.Session:
    """For requests to the controller at a URL: with the identity that this user has for it, if it is https://."""
    import requests

    made = requests.Session()
    made.trust_env = False      # neither a proxy nor other authorities
    address = urlsplit(controller)
    identity = identity_for(address.netloc) if address.scheme == "https" else None
    if identity is not None:
        made.cert = str(identity.directory / files.CERTIFICATE)
        made.verify = str(identity.directory / files.AUTHORITY)
    return made


def ask(controller: str | None, path: str, **parameters: object) -> Any:
    """The answer to GET `path` as it came in JSON. Raises NotRunning if the installation has no controller,
    ControllerSilent if there is no answer, or it is a refusal, which is told in its own words."""
    if controller is None:
        raise NotRunning("this installation has no SDN controller; one on a fabric has: `speedwell up --fabric`, "
                         "or name one with --controller URL")
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    urls = controller.split(",")
    for url in urls:
        try:
            answer = _ask(url, path, given)
        except ControllerSilent:
            if url is urls[-1]:
                raise
            continue
        if LEADER_HEADER not in answer.headers or url is urls[-1]:
            break
    document = answer.json()
    if not answer.ok:
        raise ControllerSilent(str(document.get("detail", f"the controller answered {answer.status_code}")))
    return document


def _ask(controller: str, path: str, parameters: dict[str, str]) -> requests.Response:
    import requests

    try:
        answer = session(controller).get(controller.rstrip("/") + path, params=parameters, timeout=TIMEOUT_SECONDS)
        answer.json()
    except requests.exceptions.SSLError as error:
        raise ControllerSilent(f"the controller at {controller} and we do not take each other's certificate: is "
                               f"SPEEDWELL_IDENTITY that of its installation? ({error})") from None
    except requests.ConnectionError:
        raise ControllerSilent(f"the controller at {controller} cannot be reached") from None
    except requests.Timeout:
        raise ControllerSilent(f"the controller at {controller} did not answer in {TIMEOUT_SECONDS:g} s") from None
    except (requests.RequestException, ValueError):
        raise ControllerSilent(f"what answers at {controller} is no controller of Speedwell") from None
    return answer
