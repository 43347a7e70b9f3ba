"""Before you deploy: two tenants, one pool, a network of 10 ms, all in virtual time. No broker is needed.

The noisy tenant has a deep backlog, the quiet one sends 40 messages at the start of every second. How long do
these take, from publishing to done, with equal quanta and with its own raised?
"""

from leash.flow import Flow, Lane
from leash.lab.clock import AT_BROKER, Clock
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS, SECOND


def quiet_latency(quantum: int) -> float:
    """The quiet tenant's mean latency in ms."""
    clock = Clock()
    noisy, quiet = Queue(clock, "noisy", 1_000_000), Queue(clock, "quiet")
    quiet.born = []  # remember when each message was published
    flow = Flow([Lane("noisy", 1), Lane("quiet", quantum)], workers=2)
    pool = Pool(clock, flow, [noisy, quiet], 15 * MS, up=5 * MS, down=5 * MS)
    for second in range(20):
        clock.at(second * SECOND, AT_BROKER, quiet.publish, 40)
    clock.run(20 * SECOND)
    return sum(pool.log.latencies) / len(pool.log.latencies) / MS


for quantum in (1, 2, 4):
    print(f"quantum {quantum}: the quiet tenant's messages take {quiet_latency(quantum):.0f} ms")
