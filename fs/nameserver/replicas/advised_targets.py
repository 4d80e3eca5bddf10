"""Which dataserver gets a further replica: in the background, where the network is idle.

Nobody waits here. The first call asks the controller about a large file and leaves it for now; `answered` tells when
to come again: then there is an answer, or there is none, and free space and chance decide as they do for small files.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.fs.nameserver.replicas.placement import Candidate, emptier
from speedwell.fs.nameserver.replicas.placement_advice import PlacementAdvice, Question

GoOn = Callable[[float], None]
"""What is to be done when the answer is there, at a time in seconds."""
FORGET_SECONDS = 15.0
"""An answer that nobody came back for."""


@dataclass(frozen=True, slots=True)
class _Asked:
    question: Question
    at_seconds: float
    go_on: GoOn


class AdvisedTargets:
    def __init__(self, advice: PlacementAdvice | None, generator: random.Random) -> None:
        self._advice = advice
        self._generator = generator
        self._asked: dict[str, _Asked] = {}

    def __len__(self) -> int:
        """The files that wait for an answer."""
        return len(self._asked)

    def choose(self, file_id: str, source_host: str, candidates: Sequence[Candidate], size_bytes: int,
               now_seconds: float, go_on: GoOn) -> Candidate | None:
        """One of the candidates, or None: the controller is being asked, and `go_on` will be among those `answered`.
        `source_host` has the bytes."""
        asked = self._asked.get(file_id)
        if asked is None:
            question = None
            if self._advice is not None and size_bytes >= LEAST_ADVISED_BYTES and len(candidates) > 1:
                question = self._advice.ask(candidates, 1, source_host, size_bytes, in_background=True)
            if question is None:
                return emptier(candidates, self._generator)
            self._asked[file_id] = asked = _Asked(question, now_seconds, go_on)
        if not asked.question.answered.is_set():
            return None
        del self._asked[file_id]
        advised = asked.question.chosen
        return next((candidate for candidate in candidates if advised and candidate.number == advised[0].number),
                    None) or emptier(candidates, self._generator)

    def answered(self) -> list[GoOn]:
        """What is to be done about the files whose answers are there."""
        return [asked.go_on for asked in self._asked.values() if asked.question.answered.is_set()]

    def forget(self, now_seconds: float) -> None:
        """Drop what was asked about files that need no replica any more."""
        for file_id, asked in list(self._asked.items()):
            if now_seconds - asked.at_seconds > FORGET_SECONDS:
                del self._asked[file_id]
