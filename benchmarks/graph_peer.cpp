// SimGrid's own engine (S4U) on a graph of flows: transfers are Comms, computations Execs, what waits for what is
// add_successor.
//
//   graph_peer INSTANCE OUT
//
// Build, with W the folder of a compiled SimGrid 4.1 (sources in $W/simgrid-4.1, library in $W/sg41/lib):
//   g++ -O3 -DNDEBUG -std=c++17 -I$W/simgrid-4.1/include -I$W/sg41/include -o graph_peer benchmarks/graph_peer.cpp
//       -L$W/sg41/lib -lsimgrid -Wl,-rpath,$W/sg41/lib          (one line)
//
// INSTANCE:  graph1 L F D
//            capacity of each link (inf: no limit)
//            per flow:  size start lag cap n link...     (cap < 0: none; all weights and shares are 1)
//            per pair:  before after
// OUT: a line "begin finish" per flow, inf for never. One line of JSON with CPU seconds goes to stdout.
//
// A flow's lag, or else its start, is an Exec before it. A flow that takes no time (no bytes, or nothing limits it) is
// an Exec of no work. A cap is a link of the flow's own. Flows over dead links, and all that waits for them, never end:
// they are left out. Every Exec has a host of its own, so that none share. Sharing is made max-min by flags.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace s4u = simgrid::s4u;
const double NEVER = std::numeric_limits<double>::infinity();

struct Flow {
  double size, start, lag, cap;
  std::vector<int> links;
};

struct Graph {
  std::vector<double> capacity;
  std::vector<Flow> flows;
  std::vector<std::pair<int, int>> after;
};

static double cpu_seconds()
{
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

static void refuse(const char* why)
{
  std::fprintf(stderr, "graph_peer: %s\n", why);
  std::exit(2);
}

template <class... Fields> static void scan(FILE* file, const char* format, Fields*... fields)
{
  if (std::fscanf(file, format, fields...) != static_cast<int>(sizeof...(fields)))
    refuse("the instance is not as the format says");
}

static Graph read_graph(const char* path)
{
  FILE* file = std::fopen(path, "r");
  if (!file)
    refuse("no such instance");
  size_t links, flows, pairs;
  scan(file, "graph1 %zu %zu %zu", &links, &flows, &pairs);
  Graph graph{std::vector<double>(links), std::vector<Flow>(flows), std::vector<std::pair<int, int>>(pairs)};
  for (double& capacity : graph.capacity)
    scan(file, "%lf", &capacity);
  for (Flow& flow : graph.flows) {
    size_t hops;
    scan(file, "%lf %lf %lf %lf %zu", &flow.size, &flow.start, &flow.lag, &flow.cap, &hops);
    flow.links.resize(hops);
    for (int& link : flow.links)
      scan(file, "%d", &link);
  }
  for (auto& [before, then] : graph.after)
    scan(file, "%d %d", &before, &then);
  std::fclose(file);
  return graph;
}

// Which flows never end, though what they wait for may.
static std::vector<bool> never_ending(const Graph& graph)
{
  std::vector<bool> never(graph.flows.size());
  std::vector<std::vector<int>> followers(graph.flows.size());
  for (auto [before, then] : graph.after)
    followers[before].push_back(then);
  std::vector<int> stuck;
  for (size_t f = 0; f < graph.flows.size(); f++) {
    const Flow& flow = graph.flows[f];
    bool dead        = flow.cap == 0;
    for (int link : flow.links)
      dead = dead || graph.capacity[link] == 0;
    if ((dead && flow.size > 0) || std::isinf(flow.start))
      stuck.push_back(static_cast<int>(f));
  }
  while (!stuck.empty()) {
    int flow = stuck.back();
    stuck.pop_back();
    if (never[flow])
      continue;
    never[flow] = true;
    stuck.insert(stuck.end(), followers[flow].begin(), followers[flow].end());
  }
  return never;
}

class Platform {
public:
  explicit Platform(const Graph& graph) : graph_(graph), zone_(s4u::Engine::get_instance()->get_netzone_root())
  {
    zone_ = zone_->add_netzone_star("zone");
    for (size_t link = 0; link < graph.capacity.size(); link++) {
      bool limits = graph.capacity[link] > 0 && std::isfinite(graph.capacity[link]);
      links_.push_back(limits ? new_link(graph.capacity[link]) : nullptr);
    }
    sink_ = new_host(1.0);
    zone_->add_route(nullptr, sink_, {}, false);
  }

  void seal() { zone_->seal(); }

  s4u::ActivityPtr wait(double seconds) { return work(seconds, 1.0); }

  s4u::ActivityPtr work(double amount, double speed)
  {
    return s4u::Exec::init()->set_flops_amount(amount)->set_host(new_host(speed));
  }

  s4u::ActivityPtr activity(const Flow& flow)
  {
    std::vector<int> limiting;
    for (int link : flow.links)
      if (links_[link])
        limiting.push_back(link);
    bool capped = flow.cap >= 0 && std::isfinite(flow.cap);
    if (flow.size == 0 || (limiting.empty() && !capped))
      return work(0.0, 1.0);
    if (limiting.empty())
      return work(flow.size, flow.cap);
    if (flow.size != std::floor(flow.size))
      refuse("bytes of a transfer must be whole");
    auto comm = s4u::Comm::sendto_init(source(limiting, capped ? flow.cap : -1.0), sink_);
    comm->set_payload_size(static_cast<uint64_t>(flow.size));
    return comm;
  }

private:
  s4u::Link* new_link(double capacity)
  {
    s4u::Link* link = zone_->add_link("link" + std::to_string(made_++), capacity);
    link->set_latency(0.0);
    return link;
  }

  s4u::Host* new_host(double speed) { return zone_->add_host("host" + std::to_string(made_++), speed); }

  // Flows over the same links, without a cap, come from one host.
  s4u::Host* source(const std::vector<int>& path, double cap)
  {
    s4u::Host*& known = sources_[path];
    if (known && cap < 0)
      return known;
    std::vector<s4u::LinkInRoute> route;
    for (int link : path)
      route.emplace_back(links_[link]);
    if (cap >= 0)
      route.emplace_back(new_link(cap));
    s4u::Host* host = new_host(1.0);
    zone_->add_route(host, nullptr, route, false);
    if (cap < 0)
      known = host;
    return host;
  }

  const Graph& graph_;
  s4u::NetZone* zone_;
  s4u::Host* sink_ = nullptr;
  std::vector<s4u::Link*> links_;
  std::map<std::vector<int>, s4u::Host*> sources_;
  size_t made_ = 0;
};

static void add_successor(s4u::Activity* before, const s4u::ActivityPtr& then)
{
  if (auto* comm = dynamic_cast<s4u::Comm*>(before))
    comm->add_successor(then);
  else
    static_cast<s4u::Exec*>(before)->add_successor(then);
}

int main(int argc, char** argv)
{
  std::vector<std::string> words{argv[0],
                                 "--cfg=network/model:CM02",
                                 "--cfg=network/crosstraffic:0",
                                 "--cfg=network/TCP-gamma:0",
                                 "--cfg=network/weight-S:0",
                                 "--cfg=network/bandwidth-factor:1",
                                 "--cfg=network/latency-factor:1",
                                 "--cfg=precision/timing:1e-12",
                                 "--cfg=precision/work-amount:1e-12",
                                 "--log=root.thres:warning"};
  std::vector<char*> given;
  for (auto& word : words)
    given.push_back(word.data());
  int count = static_cast<int>(given.size());
  given.push_back(nullptr);
  s4u::Engine engine(&count, given.data());
  if (argc != 3)
    refuse("usage: graph_peer INSTANCE OUT");

  Graph graph             = read_graph(argv[1]);
  std::vector<bool> never = never_ending(graph);
  size_t flows            = graph.flows.size();
  std::vector<bool> waits(flows);
  for (auto [before, then] : graph.after)
    waits[then] = true;

  double built = cpu_seconds();
  Platform platform(graph);
  std::vector<s4u::ActivityPtr> first(flows), last(flows), roots;
  size_t activities = 0;
  for (size_t f = 0; f < flows; f++) {
    if (never[f])
      continue;
    const Flow& flow = graph.flows[f];
    first[f] = last[f] = platform.activity(flow);
    activities++;
    if (flow.lag > 0) {
      first[f] = platform.wait(flow.lag);
      add_successor(first[f].get(), last[f]);
      activities++;
    }
    if (flow.start > 0) {
      s4u::ActivityPtr clock = platform.wait(flow.start);
      add_successor(clock.get(), first[f]);
      roots.push_back(clock);
      activities++;
    } else if (!waits[f])
      roots.push_back(first[f]);
  }
  for (auto [before, then] : graph.after)
    if (!never[before] && !never[then])
      add_successor(last[before].get(), first[then]);
  platform.seal();
  engine.seal_platform();

  double began = cpu_seconds();
  for (auto& root : roots)
    root->start();
  engine.run();
  double ended = cpu_seconds();

  FILE* out = std::fopen(argv[2], "w");
  for (size_t f = 0; f < flows; f++) {
    if (never[f])
      std::fprintf(out, "nan inf\n"); // when it begins is not known here
    else
      std::fprintf(out, "%.17g %.17g\n", last[f]->get_start_time(), last[f]->get_finish_time());
  }
  std::fclose(out);
  std::printf("{\"flows\": %zu, \"activities\": %zu, \"build_cpu_s\": %.6f, \"run_cpu_s\": %.6f, \"end\": %.9g}\n", flows,
              activities, began - built, ended - began, engine.get_clock());
  std::fflush(nullptr);
  std::_Exit(0); // taking 100,000 hosts down is slow and of no interest
}
