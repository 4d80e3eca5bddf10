"""Every policy that there is, by kind and name: what it does, where it comes from, how it is made.

The controller's settings, its options and its REST document, the simulator and the commands take names and help
from here; the first of a kind is the default. A new policy is one file outside of this project
(`controller/own_policies.py`, docs/extending.md); one that comes with it is a file and an entry in `_offered`.
Policies are imported when they are first made, so that a command that only names them starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from speedwell.controller.policy.kinds import Kind, Policy, PolicyRegistry

__all__ = ["POLICIES", "Kind", "Policy", "PolicyRegistry"]


def _of(*used: int, place: str) -> Callable[..., Any]:
    """Made of the arguments with these numbers, as far as they are given, by the `module.name` below
    speedwell.controller.policy."""

    def make(*arguments: Any) -> Any:
        module, name = place.rsplit(".", 1)
        given = (arguments[each] for each in used if each < len(arguments))
        return getattr(import_module(f"speedwell.controller.policy.{module}"), name)(*given)

    return make


_NETWORK, _FLOWS, _GENERATOR = 0, 1, 2
_THRESHOLD = _CHANCE = 1
_MEASURED_BY = 2


def _offered() -> Iterator[Policy]:
    def replica(name: str, help: str, source: str, make: Callable[..., Any] | None = None) -> Policy:  # noqa: A002
        return Policy(Kind.REPLICA, name, help, source, make)

    def coflow(name: str, help: str, source: str, make: Callable[..., Any], ranks: bool = False) -> Policy:  # noqa: A002
        return Policy(Kind.COFLOW, name, help, source, make, ranks)

    def placement(name: str, help: str, source: str, make: Callable[..., Any]) -> Policy:  # noqa: A002
        return Policy(Kind.PLACEMENT, name, help, source, make)

    def timeslices(name: str, help: str, source: str, place: str) -> Policy:  # noqa: A002
        return Policy(Kind.TIMESLICES, name, help, source, _of(0, 1, place=f"timeslices.{place}"))

    def comparator(name: str) -> Callable[..., Any]:
        return _of(_NETWORK, place=f"coflows.coflow_comparators.{name}")

    yield replica("mayflower", "replica and path with the least cost to the read and to those that run",
                  "Rizvi et al., Mayflower, ICDCS 2016, section 4.2")
    yield replica("mayflower-plus", "as mayflower, with exact shares over the whole network, and reads in parts that "
                  "are divided anew while they run", "own")
    yield replica("mayflower-srpt", "as mayflower, for links that serve the flow with the least left first; the "
                  "default where a coflow policy ranks flows", "own")
    yield replica("nearest", "the replica with the fewest links to the client", "Mayflower, section 6.2",
                  _of(_NETWORK, _GENERATOR, place="reads.nearest.Nearest"))
    yield replica("sinbad-r", "the replica with most to spare on its links, told of reads as they start",
                  "Chowdhury et al., Sinbad, SIGCOMM 2013; as a reader in Mayflower, section 6.2",
                  _of(_NETWORK, _GENERATOR, place="reads.sinbad_r.SinbadR"))
    yield replica("sinbad-r-estimate", "sinbad-r that counts a read for as long as it should take",
                  "Sinbad's paper, section 5.2", _of(_NETWORK, _GENERATOR, place="reads.sinbad_r.SinbadREstimate"))
    yield replica("sinbad-r-measured", "sinbad-r that knows the measurements alone", "as sinbad-r",
                  _of(_NETWORK, _GENERATOR, place="reads.sinbad_r.SinbadR"))
    yield replica("random", "any replica, with equal chances", "baseline",
                  _of(_GENERATOR, place="reads.random_replica.RandomReplica"))
    yield replica("hdfs", "one in the client's rack if there is one, else any", "HDFS; Mayflower, section 6.7",
                  _of(_NETWORK, _GENERATOR, place="reads.hdfs.Hdfs"))
    yield replica("power-of-two-choices", "of two at random the one that serves fewer reads",
                  "Mitzenmacher, The power of two choices, 2001",
                  _of(_FLOWS, _GENERATOR, place="reads.power_of_two_choices.PowerOfTwoChoices"))
    yield Policy(Kind.PATH, "mayflower", "the path with the least cost", "Mayflower, section 4.2",
                 lambda paths, five_tuple: paths)
    yield Policy(Kind.PATH, "ecmp", "the path that switches would hash the flow to", "RFC 2992",
                 lambda paths, five_tuple: (_of(0, 1, place="network.ecmp.ecmp_path")(paths, five_tuple),))
    yield coflow("mincof", "shortest bottleneck first, routes and rates", "Chiu et al., MinCOF, section III-D",
                 _of(_NETWORK, _THRESHOLD, place="coflows.mincof.MinCOF"))
    yield coflow("coflow-plus", "Sincronia's order improved, routes, and priorities instead of rates", "own",
                 _of(_NETWORK, place="coflows.coflow_plus.CoflowPlus"), ranks=True)
    yield coflow("varys", "smallest effective bottleneck first, rates by MADD, ECMP",
                 "Chowdhury, Zhong and Stoica, SIGCOMM 2014", comparator("Varys"))
    yield coflow("tailor", "fair sharing; a new coflow's slowest flow is moved", "Jiang et al., ICCCN 2016",
                 comparator("Tailor"))
    yield coflow("rapier", "routes and rates together, smallest bottleneck first", "Zhao et al., INFOCOM 2015",
                 comparator("Rapier"))
    yield coflow("sincronia", "an order within four times the best, as priorities, ECMP",
                 "Agarwal et al., SIGCOMM 2018", comparator("Sincronia"), ranks=True)
    yield coflow("aalo", "queues by what coflows have sent, sizes unknown, ECMP",
                 "Chowdhury and Stoica, SIGCOMM 2015", comparator("Aalo"))
    yield coflow("fair", "no schedule: TCP's fair share, ECMP", "baseline", comparator("FairSharing"))
    yield placement("sinbad", "one by one the machine whose tightest link has most to spare",
                    "Chowdhury et al., Sinbad, SIGCOMM 2013",
                    _of(_NETWORK, _CHANCE, _MEASURED_BY, place="placements.sinbad.Sinbad"))
    yield placement("sinbad-plus", "the chain with which this write and all running ones end soonest", "own",
                    _of(_NETWORK, _CHANCE, _MEASURED_BY, place="placements.sinbad_plus.SinbadPlus"))
    yield placement("rack-aware", "the writer's own, its rack, then another rack, at random; no load counts",
                    "Mayflower, section 5", _of(_NETWORK, _CHANCE, place="placements.rack_aware.RackAware"))
    yield placement("hdfs", "the writer's own, another rack, then that rack again, at random; no load counts",
                    "HDFS, BlockPlacementPolicyDefault",
                    _of(_NETWORK, _CHANCE, place="placements.rack_aware.HdfsPlacement"))
    yield timeslices("xco-plus", "rates inside slices, several destinations at once, and a bound on every wait",
                     "own", "xco_plus.XCoPlus")
    yield timeslices("xco", "senders in turn, each to one destination at its full rate, never more than links carry",
                     "Rajanna et al., XCo, HPDC 2010, Algorithm 1", "xco.XCo")
    yield timeslices("rate-limits", "all hosts send all the time, each with C/n of its tightest link",
                     "XCo, section 3.3", "rate_limits.RateLimits")


POLICIES = PolicyRegistry()
for _policy in _offered():
    POLICIES.register(_policy)


def replica_policy_beside(coflow_policy: str | None) -> str:
    """What places reads unless somebody says: where coflows rank flows, links are queues. Raises UnknownPolicy."""
    ranks_flows = coflow_policy is not None and POLICIES.get(Kind.COFLOW, coflow_policy).ranks_flows
    return "mayflower-srpt" if ranks_flows else POLICIES.default(Kind.REPLICA)
