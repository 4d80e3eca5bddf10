"""Figures 4 to 8 of Mayflower's evaluation (Rizvi et al., "Mayflower", section 6): what each compares.

The text gives neither lambda for Figures 4, 5 and 7 nor how 8:1 splits over the tiers. Taken here: the one lambda
that the text names, 0.07, and 2:1 at the edge times 4:1 above it.
"""

from dataclasses import asdict, dataclass

from sim.errors import InvalidSetting

RACK_LOCAL, POD_LOCAL, REMOTE, EVEN = (0.5, 0.3, 0.2), (0.3, 0.5, 0.2), (0.2, 0.3, 0.5), (0.33, 0.33, 0.33)
EDGE_RATIO = 2.0
HOST_BPS = 1e9
RATE = 0.07


@dataclass(frozen=True)
class Method:
    """A way to place reads, under the name that the paper gives it."""

    name: str
    replica_policy: str
    path_policy: str
    parts: int = 1


MAYFLOWER = Method("Mayflower", "mayflower", "mayflower")
SINBAD_MAYFLOWER = Method("Sinbad-R Mayflower", "sinbad-r", "mayflower")
PAPER_METHODS = (
    MAYFLOWER, SINBAD_MAYFLOWER, Method("Sinbad-R ECMP", "sinbad-r", "ecmp"),
    Method("Nearest Mayflower", "nearest", "mayflower"), Method("Nearest ECMP", "nearest", "ecmp"),
)
HDFS_METHODS = (Method("HDFS Mayflower", "nearest", "mayflower"), Method("HDFS ECMP", "nearest", "ecmp"))
"""HDFS's client takes the nearest replica. In the simulator it is a policy, on the emulated fabric a real HDFS."""
TWO_REPLICAS = Method("Mayflower, two replicas", "mayflower", "mayflower", parts=2)


@dataclass(frozen=True)
class Task:
    """One run: a point of a figure, a method and a seed. Equal tasks give equal results."""

    point: str
    x: float
    method: Method
    rate: float
    locality: tuple[float, float, float]
    oversubscription: float
    reads: int
    seed: int

    def parameters(self) -> dict[str, object]:
        """As plain JSON values."""
        return {**asdict(self), "locality": list(self.locality)}


Point = tuple[str, float, float, tuple[float, float, float], float]
"""Label, place on the axis, reads per server and second, locality, core-to-rack over-subscription."""


@dataclass(frozen=True)
class Figure:
    """What a figure varies, and what the paper says of the outcome."""

    title: str
    x_label: str
    methods: tuple[Method, ...]
    points: tuple[Point, ...]
    quick_points: tuple[int, ...]
    claims: tuple[str, ...]


def _rates(locality: tuple[float, float, float],
           rates: tuple[float, ...] = (0.02, 0.04, 0.06, 0.07, 0.08, 0.09, 0.10)) -> list[Point]:
    return [(f"{locality} {rate:g}", rate, rate, locality, 8.0) for rate in rates]


FIGURES = {
    "mayflower-fig4": Figure(
        "Completion times by method, locality (0.5, 0.3, 0.2)", "", (*PAPER_METHODS, TWO_REPLICAS),
        (("", 0.0, RATE, RACK_LOCAL, 8.0),), (0,),
        ("others' average: 1.4 to 3.4 times Mayflower's", "others' 95th percentile: up to 12.4 times",
         "two replicas at once: up to 10 % off the average (section 4.3)")),
    "mayflower-fig5": Figure(
        "Completion times by locality of the clients", "(R, P, O)", PAPER_METHODS,
        tuple((str(locality), number, RATE, locality, 8.0)
              for number, locality in enumerate((RACK_LOCAL, POD_LOCAL, REMOTE, EVEN))), (0, 1, 2, 3),
        ("Mayflower consistently ahead (the values are only drawn)",)),
    "mayflower-fig6": Figure(
        "Completion times by arrival rate", "reads per server and second", PAPER_METHODS,
        (*_rates(RACK_LOCAL), *_rates(REMOTE)), (1, 3, 5, 8, 10),
        ("Nearest fails at high rates, Mayflower grows little",
         "at (0.2, 0.3, 0.5) Sinbad-R ECMP is about Nearest ECMP")),
    "mayflower-fig7": Figure(
        "Completion times by over-subscription", "core-to-rack ratio", (MAYFLOWER, SINBAD_MAYFLOWER),
        tuple((f"{ratio:g}:1", ratio, RATE, RACK_LOCAL, ratio) for ratio in (4.0, 8.0, 12.0, 16.0)), (1, 3),
        ("completion times almost double from 8:1 to 16:1",)),
    "mayflower-fig8": Figure(
        "The prototype and HDFS, by arrival rate, locality (0.5, 0.3, 0.2)", "reads per server and second",
        (MAYFLOWER, *HDFS_METHODS), tuple(_rates(RACK_LOCAL, (0.03, 0.05, 0.07))), (2,),
        ("Mayflower more than 80 % below HDFS ECMP (abstract)", "HDFS's times grow quickly with the rate",
         "HDFS Mayflower is better than HDFS ECMP (section 6.7)")),
}


def tasks(figure: Figure, quick: bool, seed: int) -> list[Task]:
    """The runs of a figure: the same seeds, so the same reads, for every method. Raises InvalidSetting."""
    if seed < 0:
        raise InvalidSetting(f"seed: must be a number from 0 up, not {seed}")
    runs, reads = (3, 500) if quick else (10, 2000)
    points = [figure.points[index] for index in figure.quick_points] if quick else list(figure.points)
    return [Task(point, x, method, rate, locality, ratio, reads, seed + run)
            for point, x, rate, locality, ratio in points for method in figure.methods for run in range(runs)]
