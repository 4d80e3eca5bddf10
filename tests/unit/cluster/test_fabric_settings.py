"""What an installation on a fabric cannot be is refused before anything starts."""

import pytest

from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.fabric_settings import read_settings
from speedwell.topo.fabric import three_tier

FABRIC = three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=1)


@pytest.mark.parametrize(("settings", "why"), [
    ({"metadata_servers": 1}, "metadata_servers: .* name 2 or more"),
    ({"metadata_servers": 5}, "metadata_servers: 5 servers need as many hosts, there are 4"),
    ({"metadata_servers": 8}, "metadata_servers: .*7"),
    ({"metadata_servers": 2, "nameservers": 3}, "metadata_servers: it does not go with nameservers"),
])
def test_owners_of_the_namespace_are_two_or_more_on_hosts_that_are_there(settings: dict[str, int], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        read_settings(fabric=FABRIC, **settings)


def test_owners_are_nameservers_with_an_etcd_and_certificates() -> None:
    settings = read_settings(fabric=FABRIC, metadata_servers=2)
    assert settings.nameservers == 2
    assert {"nameserver-0", "nameserver-1", "etcd-0"} <= dict(settings.identity_names).keys()
