// Replays a flow set in SimGrid (network model CM02) and prints how long the simulation took, then when each flow arrived.
//
// Input, from the file named first: the number of links, their capacities in bytes/s; the number of flows, then for each, in the
// order of starts: start in seconds, bytes, number of links, links. Every different path gets a pair of hosts of its own, because
// SimGrid finds a route by its hosts; making them is not timed.
#include <simgrid/s4u.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Flow {
  double start_s;
  double bytes;
  std::vector<int> path;
  sg4::Host* source;
  sg4::Host* destination;
  sg4::CommPtr comm;
};

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  sg4::Engine::set_config("network/model:CM02");
  sg4::Engine::set_config("network/optim:Full");
  sg4::Engine::set_config("network/crosstraffic:0");
  sg4::Engine::set_config("network/TCP-gamma:0");
  sg4::Engine::set_config("surf/precision:1e-12");
  std::ifstream input(argv[1]);
  int link_count = 0;
  int flow_count = 0;
  input >> link_count;
  std::vector<double> capacity(link_count);
  for (double& one : capacity)
    input >> one;
  input >> flow_count;
  std::vector<Flow> flows(flow_count);
  for (Flow& flow : flows) {
    int hops = 0;
    input >> flow.start_s >> flow.bytes >> hops;
    flow.path.resize(hops);
    for (int& link : flow.path)
      input >> link;
  }

  // Hosts are made in pairs of (first half of the path, second half): a route is known by the two.
  auto* zone = sg4::create_full_zone("world");
  std::vector<sg4::Link*> links;
  for (int number = 0; number < link_count; number++)
    links.push_back(zone->create_link("l" + std::to_string(number), capacity[number])->set_latency(0)->seal());
  std::map<std::vector<int>, sg4::Host*> sources;
  std::map<int, sg4::Host*> sinks;
  std::map<std::vector<int>, bool> routes;
  for (Flow& flow : flows) {
    std::vector<int> front(flow.path.begin(), flow.path.end() - 1);
    auto& source = sources[front];
    if (source == nullptr)
      source = zone->create_host("s" + std::to_string(sources.size()), 1e9);
    auto& sink = sinks[flow.path.back()];
    if (sink == nullptr)
      sink = zone->create_host("d" + std::to_string(flow.path.back()), 1e9);
    flow.source = source;
    flow.destination = sink;
  }
  for (Flow& flow : flows) {
    if (not routes.emplace(flow.path, true).second)
      continue;
    std::vector<sg4::LinkInRoute> route;
    for (int link : flow.path)
      route.emplace_back(links[link]);
    zone->add_route(flow.source->get_netpoint(), flow.destination->get_netpoint(), nullptr, nullptr, route, false);
  }
  zone->seal();

  sg4::Actor::create("sender", flows.front().source, [&flows]() {
    for (Flow& flow : flows) {
      sg4::this_actor::sleep_until(flow.start_s);
      flow.comm = sg4::Comm::sendto_async(flow.source, flow.destination, static_cast<uint64_t>(flow.bytes));
    }
    for (Flow& flow : flows)
      flow.comm->wait();
  });
  const auto before = std::chrono::steady_clock::now();
  engine.run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  std::printf("%.6f\n", took.count());
  for (const Flow& flow : flows)
    std::printf("%.17g\n", flow.comm->get_finish_time() - flow.start_s);
  return 0;
}
