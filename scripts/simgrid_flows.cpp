// Runs flows in SimGrid's fluid network model and prints how long that took and when each flow ended.
// Input: number of links, their capacities in bytes per second; number of flows, and for each its start in
// seconds, its size in bytes, the number of its links, the links. Starts do not go back.
// Output: CPU seconds of the run, then the flows' end times, one a line.
#include <ctime>
#include <iomanip>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

struct Flow {
    double start, bytes;
    sg::Host *source, *sink;
};

static void start_all(const std::vector<Flow>& flows, std::vector<sg::CommPtr>* running)
{
    for (const Flow& flow : flows) {
        if (flow.start > sg::Engine::get_clock())
            sg::this_actor::sleep_until(flow.start);
        running->push_back(sg::Comm::sendto_async(flow.source, flow.sink, static_cast<uint64_t>(flow.bytes)));
    }
    sg::Comm::wait_all(*running);
}

int main(int argc, char** argv)
{
    sg::Engine engine(&argc, argv);
    // Plain max-min shares: no latency, no window, no share of the way back.
    sg::Engine::set_config("network/model:CM02");
    sg::Engine::set_config("network/crosstraffic:0");
    sg::Engine::set_config("network/TCP-gamma:0");
    sg::Engine::set_config("network/weight-S:0");
    sg::Engine::set_config("network/latency-factor:1");
    sg::Engine::set_config("network/bandwidth-factor:1");
    auto* zone = sg::create_star_zone("fabric");
    int number;
    std::cin >> number;
    std::vector<sg::Link*> links;
    for (int i = 0; i < number; ++i) {
        double bytes_per_second;
        std::cin >> bytes_per_second;
        links.push_back(zone->create_link("l" + std::to_string(i), bytes_per_second)->set_latency(0)->seal());
    }
    std::cin >> number;
    std::vector<Flow> flows(number);
    // A star's host has a way of its own to the middle: two hosts for each flow give it exactly its links.
    auto* sink = zone->create_host("sink", 1e9)->seal();
    zone->add_route(sink->get_netpoint(), nullptr, nullptr, nullptr, std::vector<sg::LinkInRoute>{}, true);
    for (int i = 0; i < number; ++i) {
        int length, link;
        std::cin >> flows[i].start >> flows[i].bytes >> length;
        std::vector<sg::LinkInRoute> route;
        for (; length > 0; --length) {
            std::cin >> link;
            route.emplace_back(links[link]);
        }
        flows[i].source = zone->create_host("h" + std::to_string(i), 1e9)->seal();
        flows[i].sink = sink;
        zone->add_route(flows[i].source->get_netpoint(), nullptr, nullptr, nullptr, route, false);
    }
    zone->seal();
    std::vector<sg::CommPtr> running;
    sg::Actor::create("starter", sink, start_all, flows, &running);
    const std::clock_t begin = std::clock();
    engine.run();
    std::cout << static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC << "\n" << std::setprecision(12);
    for (const sg::CommPtr& comm : running)
        std::cout << comm->get_finish_time() << "\n";
}
