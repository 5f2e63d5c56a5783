from baseboard.scheduling import PolicyParts, hookimpl


class FairShare:
    """Start-time fair queueing: tenants share alike, however many requests each of them sends."""

    def __init__(self):
        self.now = 0  # virtual time, in tokens: when the last one to be let in was due
        self.ends = {}  # by tenant: when all that it has asked for so far will have had its share

    def key(self, spec):
        start = max(self.now, self.ends.get(spec.tenant, 0))
        self.ends[spec.tenant] = start + spec.max_total
        return (start,)

    def begin_step(self, step): ...

    def admitted(self, request, step):
        self.now = max(self.now, request.rank[0])


@hookimpl
def scheduling_version():
    return "1.0"


@hookimpl
def policy():
    return PolicyParts(rank=(share := FairShare()), observers=[share])
